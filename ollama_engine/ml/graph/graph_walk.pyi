# Nothing for Python: the functions of this module take ggml's pointers.
