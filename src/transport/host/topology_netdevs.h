// Network devices from a sysfs tree: their addresses and networks, and the devices below them.
//
// Thread-safety: const methods from any thread.

#ifndef KVXFER_TRANSPORT_HOST_TOPOLOGY_NETDEVS_H_
#define KVXFER_TRANSPORT_HOST_TOPOLOGY_NETDEVS_H_

#include <map>
#include <string>
#include <vector>

#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"

namespace kvxfer {

class NetdevReader {
 public:
  // Reads all addresses once. `sysfs` must outlive this object.
  explicit NetdevReader(const Sysfs& sysfs);

  Netdev Read(const std::string& name) const;
  // The NUMA node of its device, or of the netdevs below it (a bond, a VLAN). -1: unknown.
  int NodeOf(const std::string& name) const { return NodeOf(name, kLevels); }
  // Whether `device` (a resolved path, or a netdev's name) is `name` itself, its device, or the
  // device of a netdev below it.
  bool StandsOn(const std::string& name, const std::string& device) const {
    return StandsOn(name, device, kLevels);
  }
  bool HasAddress(const std::string& name, const IpAddress& address) const;

 private:
  // A VLAN on a bond on a NIC has three levels.
  static constexpr int kLevels = 4;

  int NodeOf(const std::string& name, int levels) const;
  bool StandsOn(const std::string& name, const std::string& device, int levels) const;
  std::vector<std::string> Below(const std::string& name) const;
  void ReadV4Routes();
  void ReadV4Locals();
  void ReadV6();
  void AskKernel();
  void AddAddress(const std::string& name, const IpAddress& address);
  void AddSubnet(const std::string& name, const IpSubnet& subnet);

  const Sysfs& sysfs_;
  std::vector<std::string> names_;
  std::map<std::string, std::vector<IpSubnet>> subnets_;
  std::map<std::string, std::vector<IpAddress>> addresses_;
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_TOPOLOGY_NETDEVS_H_
