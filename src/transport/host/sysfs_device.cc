#include "src/transport/host/sysfs_device.h"

#include "absl/strings/str_split.h"
#include "src/core/base/strings.h"

namespace kvxfer {

std::string SysfsPath(std::string_view folder, std::string_view name) {
  return absl::StrCat(ToAbsl(folder), "/", ToAbsl(name));
}

uint32_t ReadSysfsUint(const Sysfs& sysfs, const std::string& path) {
  return static_cast<uint32_t>(sysfs.ReadInt(path).value_or(0));
}

PciPath PciPathOf(const std::string& resolved) {
  PciPath path;
  for (const absl::string_view part : absl::StrSplit(resolved, '/', absl::SkipEmpty())) {
    const bool bridge = path.empty() && ToStd(part).starts_with("pci");
    const bool device = !path.empty() && PciAddress::Parse(ToStd(part)).has_value();
    if (bridge || device) path.emplace_back(part.data(), part.size());
    if (!path.empty() && !bridge && !device) break;
  }
  return path.size() < 2 ? PciPath() : path;
}

std::string DeviceFolder(const Sysfs& sysfs, const std::string& device) {
  const PciPath path = PciPathOf(sysfs.Resolve(device));
  if (path.empty()) return device;
  std::string folder = SysfsPath(kPciDevices, path.back());
  return sysfs.Exists(folder) ? folder : device;
}

}  // namespace kvxfer
