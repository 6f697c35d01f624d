// A target must have a source; what it compiles to is empty.
int main() {}
