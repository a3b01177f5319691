// Devices in a sysfs tree: finds the PCI device that a link leads to.
//
// Thread-safety: free functions; any thread.

#ifndef KVXFER_TRANSPORT_HOST_SYSFS_DEVICE_H_
#define KVXFER_TRANSPORT_HOST_SYSFS_DEVICE_H_

#include <string>
#include <string_view>

#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"

namespace kvxfer {

inline constexpr uint32_t kPciVendorAmazon = 0x1d0f;  // EFA devices; from pci-ids
inline constexpr std::string_view kPciDevices = "/sys/bus/pci/devices";
inline constexpr std::string_view kNetDevices = "/sys/class/net";

// "folder/name".
std::string SysfsPath(std::string_view folder, std::string_view name);

// The number in the file; 0 if it cannot be read.
uint32_t ReadSysfsUint(const Sysfs& sysfs, const std::string& path);

// "0000:3c:00.0" and every bridge above it, taken from a resolved path such as
// ".../devices/pci0000:37/0000:37:01.0/0000:3c:00.0/x". Empty: the path contains no PCI device.
PciPath PciPathOf(const std::string& resolved);

// The folder with the attributes (vendor, numa_node, ...) of the device that the link `device`
// leads to. It is the folder of the last PCI device on the path, because devices below one
// (sub-functions) have no such files.
std::string DeviceFolder(const Sysfs& sysfs, const std::string& device);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_SYSFS_DEVICE_H_
