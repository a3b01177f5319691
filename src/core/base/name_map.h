// A map by name that is asked with any kind of string, in a time that does not depend on how many
// names there are.

#ifndef KVXFER_CORE_BASE_NAME_MAP_H_
#define KVXFER_CORE_BASE_NAME_MAP_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace kvxfer {

struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>{}(name); }
};

template <typename T>
using NameMap = std::unordered_map<std::string, T, NameHash, std::equal_to<>>;

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_NAME_MAP_H_
