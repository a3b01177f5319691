// One side of a fabric, opened as libfabric has it: fabric, domain, queue, address vector, one
// endpoint. Which provider it is comes from KVXFER_FABRIC_PROVIDER, which library from
// LD_LIBRARY_PATH; it takes every mr_mode that there is, and does what that asks for.
//
// A call that must succeed and does not ends the program with what it was.
#ifndef KVXFER_TESTS_FABRIC_SIDE_H_
#define KVXFER_TESTS_FABRIC_SIDE_H_

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvxfer::testing {

inline constexpr uint64_t kAllAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

struct CloseFid {
  template <typename T>
  void operator()(T* object) const {
    Close(&object->fid);
  }
  static void Close(fid* f);
};
template <typename T>
using Fid = std::unique_ptr<T, CloseFid>;

struct FreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

std::string Provider();  // "efa", "tcp;ofi_rxm", ...
bool IsFake();
// What every test asks fi_getinfo for.
Info Hints();
int GetInfo(const fi_info& hints, Info* info);

// What a peer needs to know of memory; travels as bytes.
struct RemoteMemory {
  uint64_t base = 0;  // what offset 0 is called
  uint64_t key = 0;
  uint64_t raw_size = 0;
  uint8_t raw[64] = {};
};

class Side;

// Zeroed memory, registered.
class Memory {
 public:
  Memory(Side* side, size_t bytes, uint64_t access = kAllAccess);
  std::byte* data() { return bytes_.data(); }
  std::span<std::byte> bytes() { return bytes_; }
  void* desc() const { return region_ == nullptr ? nullptr : fi_mr_desc(region_.get()); }
  RemoteMemory remote() const { return remote_; }
  fid_mr* region() const { return region_.get(); }
  void Deregister() { region_ = nullptr; }

 private:
  std::vector<std::byte> bytes_;
  Fid<fid_mr> region_;
  RemoteMemory remote_;
};

// How an op ended.
struct Ended {
  uint64_t op = 0;
  int error = 0;
};

struct Write {
  size_t from = 0;
  size_t to = 0;
  size_t bytes = 0;
  bool has_data = false;
  uint64_t data = 0;
  uint64_t flags = FI_DELIVERY_COMPLETE;
};

class Side {
 public:
  explicit Side(fi_wait_obj wait = FI_WAIT_NONE);
  ~Side();

  const fi_info& info() const { return *info_; }
  fid_fabric* fabric() const { return fabric_.get(); }
  fid_domain* domain() const { return domain_.get(); }
  fid_cq* cq() const { return cq_.get(); }
  fid_ep* endpoint() const { return endpoint_.get(); }
  bool has(int mr_mode_bit) const { return (info_->domain_attr->mr_mode & mr_mode_bit) != 0; }

  Fid<fid_ep> NewEndpoint();
  static std::string NameOf(fid_ep* endpoint);
  std::string name() const { return NameOf(endpoint_.get()); }
  fi_addr_t Insert(const std::string& name);
  // The key under which this side reaches a peer's memory.
  uint64_t Import(const RemoteMemory& remote);
  // Registers without a Memory: 0 or a negative errno.
  int Register(void* base, size_t bytes, uint64_t access, uint64_t wanted_key, Fid<fid_mr>* out);
  // FI_MR_ENDPOINT: binds and enables. Then the key is known.
  void Enable(fid_mr* region);
  RemoteMemory Tell(fid_mr* region, const void* base) const;

  // What libfabric answers; accepted ops end in `ended`, each once, under the number that
  // last_op() has afterwards.
  ssize_t Post(fi_addr_t peer, Memory* local, const RemoteMemory& remote, const Write& write,
               fid_ep* endpoint = nullptr);
  ssize_t PostRead(fi_addr_t peer, Memory* local, const RemoteMemory& remote, size_t from,
                   size_t to, size_t bytes);
  ssize_t PostSend(fi_addr_t peer, Memory* local, size_t from, size_t bytes);
  ssize_t PostReceive(Memory* local, size_t to, size_t bytes);
  uint64_t last_op() const { return next_op_ - 1; }

  // Reads the completion queue once; what came is in `ended` and `arrived`.
  void Poll();
  std::deque<Ended> ended{};
  std::deque<uint64_t> arrived{};   // data of remote writes
  std::deque<uint64_t> received{};  // lengths of messages, in the order of receives' ends
  size_t outstanding() const { return contexts_.size(); }

  void CloseEndpoint() { endpoint_ = nullptr; }

 private:
  struct Context;
  void* NewContext(bool receive);
  ssize_t Posted(ssize_t result, void* context);
  void End(void* context, int error, size_t bytes);

  Info info_;
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_cq> cq_;
  Fid<fid_av> av_;
  Fid<fid_ep> endpoint_;
  uint64_t next_key_ = 1;
  uint64_t next_op_ = 1;
  std::map<void*, std::unique_ptr<Context>> contexts_;
  std::map<std::string, uint64_t> imported_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_FABRIC_SIDE_H_
