// Writes templates with Go's own text/template: cases as JSON on standard input, outcomes on standard output.
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"text/template"
)

type Case struct {
	Source string
	Data   map[string]any
}

type Outcome struct {
	Text string `json:"text"`
	// "" where it was written, "parse" or "run" where it was not.
	Fails string `json:"fails"`
}

func outcome(c Case) Outcome {
	functions := template.FuncMap{"json": func(v any) string {
		b, _ := json.Marshal(v)
		return string(b)
	}}
	parsed, err := template.New("").Option("missingkey=zero").Funcs(functions).Parse(c.Source)
	if err != nil {
		return Outcome{Fails: "parse"}
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, c.Data); err != nil {
		return Outcome{Fails: "run"}
	}
	return Outcome{Text: out.String()}
}

func main() {
	var cases []Case
	if err := json.NewDecoder(os.Stdin).Decode(&cases); err != nil {
		panic(err)
	}
	found := make([]Outcome, 0, len(cases))
	for _, c := range cases {
		found = append(found, outcome(c))
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "")
	if err := encoder.Encode(found); err != nil {
		panic(err)
	}
}
