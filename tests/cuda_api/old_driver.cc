// A libcuda.so.1 that is too old for kvxfer: of the driver's functions it has two.

extern "C" int cuInit(unsigned /*flags*/) { return 0; }
extern "C" int cuDriverGetVersion(int* version) {
  *version = 11030;
  return 0;
}
