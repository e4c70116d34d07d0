"""Chat: messages to prompts, and answers to messages. Pure text, no model and no tokenizer."""
