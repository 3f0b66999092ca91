"""What people see on a terminal: progress, and text from files without the characters that a terminal would act on."""
