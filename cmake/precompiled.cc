// A CMake target needs a source. This one does nothing.
int main() {}
