// Devices in a sysfs tree: where the PCI device is that a link leads to.
//
// Thread-safety: free functions; any thread.

#ifndef KVXFER_TRANSPORT_HOST_SYSFS_DEVICE_H_
#define KVXFER_TRANSPORT_HOST_SYSFS_DEVICE_H_

#include <string>
#include <string_view>

#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"

namespace kvxfer {

inline constexpr uint32_t kPciVendorAmazon = 0x1d0f;  // of EFA devices, by pci-ids
inline constexpr std::string_view kPciDevices = "/sys/bus/pci/devices";
inline constexpr std::string_view kNetDevices = "/sys/class/net";

// "folder/name".
std::string SysfsPath(std::string_view folder, std::string_view name);

// 0 where nothing is told.
uint32_t ReadSysfsUint(const Sysfs& sysfs, const std::string& path);

// "0000:3c:00.0" and every bridge above it, of a resolved path
// ".../devices/pci0000:37/0000:37:01.0/0000:3c:00.0/x". Empty: no PCI device on it.
PciPath PciPathOf(const std::string& resolved);

// The folder with the facts (vendor, numa_node, ...) of what the link `device` leads to: of the
// last PCI device on the way, for what hangs below one (a sub-function) has no such files itself.
std::string DeviceFolder(const Sysfs& sysfs, const std::string& device);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_SYSFS_DEVICE_H_
