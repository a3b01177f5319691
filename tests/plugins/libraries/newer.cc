// The library that old_library is linked with.
extern "C" int kvxfer_test_old() { return 1; }
extern "C" int kvxfer_test_new() { return 2; }
