// fi_fabric: where everything begins and ends.
#include <cstring>

#include "tests/support/fake_fabric/domain.h"

namespace fake_fabric {
namespace {

int CloseFabric(fid* f) {
  auto* const fabric = From<Fabric>(f);
  if (fabric->users > 0) return -FI_EBUSY;
  delete fabric;
  return 0;
}

fi_ops fid_ops = {
    .size = sizeof(fi_ops),
    .close = &CloseFabric,
    .bind = &NotThere,
    .control = &NotThere,
    .ops_open = &NotThere,
    .tostr = &NotThere,
    .ops_set = &NotThere,
};

int MakeDomain(fid_fabric* f, fi_info* info, fid_domain** out, void* context) {
  return OpenDomain(static_cast<Fabric*>(f), info, out, context);
}

fi_ops_fabric fabric_ops = {
    .size = sizeof(fi_ops_fabric),
    .domain = &MakeDomain,
    .passive_ep = &NotThere,
    .eq_open = &OpenEq,
    .wait_open = &NotThere,
    .trywait = &TryWait,
    .domain2 = nullptr,
};

}  // namespace
}  // namespace fake_fabric

extern "C" int fi_fabric(struct fi_fabric_attr* attr, struct fid_fabric** fabric, void* context) {
  auto* const made = new fake_fabric::Fabric{};
  made->config = fake_fabric::ReadConfig();
  if (attr->prov_name != nullptr && made->config.provider != attr->prov_name) {
    delete made;
    return -FI_ENODATA;
  }
  made->fid.fclass = FI_CLASS_FABRIC;
  made->fid.context = context;
  made->fid.ops = &fake_fabric::fid_ops;
  made->ops = &fake_fabric::fabric_ops;
  made->api_version = attr->api_version;
  *fabric = made;
  return 0;
}
