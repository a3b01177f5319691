// The version of the kvxfer headers that a program or plugin was compiled with.
//
// Thread-safety: a constant.
//
// Example:
//   std::printf("built with kvxfer %s\n", kvxfer::kVersion);

#ifndef KVXFER_VERSION_H_
#define KVXFER_VERSION_H_

namespace kvxfer {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace kvxfer

#endif  // KVXFER_VERSION_H_
