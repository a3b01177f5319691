// And the one that is there when it is loaded.
extern "C" int kvxfer_test_old() { return 1; }
