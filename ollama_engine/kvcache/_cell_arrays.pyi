# Nothing for Python: the functions of this module give memory views and pointers.
