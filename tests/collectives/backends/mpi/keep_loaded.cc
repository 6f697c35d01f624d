// Only in AddressSanitizer builds, in the programs that mpirun starts. MPI_Finalize unloads Open MPI's
// components, and with them the variables that lead to their tables and the names by which tests/lsan.supp
// tells their leaks from ours: to LeakSanitizer all of it would be lost memory of an unknown module. So
// nothing is unloaded, and what is left is named.
extern "C" int dlclose(void* library);
int dlclose(void* library) { return 0; }
