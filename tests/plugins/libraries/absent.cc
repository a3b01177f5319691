// The library that missing_library needs.
extern "C" int kvxfer_test_absent() { return 1; }
