// Loads and stores the integers of wire formats: little-endian, at unaligned addresses.
//
// Thread-safety: functions without state.
#ifndef KVXFER_TRANSPORT_BYTES_H_
#define KVXFER_TRANSPORT_BYTES_H_

#include <endian.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvxfer::net {

inline void Put16(std::byte* at, uint16_t v) {
  v = htole16(v);
  std::memcpy(at, &v, sizeof(v));
}
inline void Put32(std::byte* at, uint32_t v) {
  v = htole32(v);
  std::memcpy(at, &v, sizeof(v));
}
inline void Put64(std::byte* at, uint64_t v) {
  v = htole64(v);
  std::memcpy(at, &v, sizeof(v));
}
inline uint16_t Get16(const std::byte* at) {
  uint16_t v;
  std::memcpy(&v, at, sizeof(v));
  return le16toh(v);
}
inline uint32_t Get32(const std::byte* at) {
  uint32_t v;
  std::memcpy(&v, at, sizeof(v));
  return le32toh(v);
}
inline uint64_t Get64(const std::byte* at) {
  uint64_t v;
  std::memcpy(&v, at, sizeof(v));
  return le64toh(v);
}
inline uint8_t Get8(const std::byte* at) { return std::to_integer<uint8_t>(*at); }

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_BYTES_H_
