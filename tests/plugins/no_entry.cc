// A shared library, but no plugin.
int kvxfer_test_no_entry = 1;
