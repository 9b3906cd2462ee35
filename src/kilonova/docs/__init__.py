"""The generated parts of the documentation. Each is read from the declarations that the program itself runs on."""
