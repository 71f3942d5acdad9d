"""Plain arrays from and to everything outside: other libraries' objects, files, run directories."""
