// Lists of descriptors: those that Python hands to Agent.write and Agent.read, and XferList, which
// is picked from by index again and again (kvxfer.compat.nixl).
//
// Thread-safety: immutable once made.

#ifndef KVXFER_BINDINGS_PYTHON_DESCRIPTOR_LIST_H_
#define KVXFER_BINDINGS_PYTHON_DESCRIPTOR_LIST_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "bindings/python/integers.h"
#include "kvxfer/memory.h"

namespace kvxfer::python {

using Descriptors = std::vector<Descriptor>;

// Either every descriptor, or, of strided rows, how to reckon them.
class XferList {
 public:
  explicit XferList(Descriptors all) : all_(std::make_shared<const Descriptors>(std::move(all))) {
    size_ = all_->size();
  }
  // (N, 3): address, bytes, device; (N, 5): and stride, count. InvalidArgument.
  explicit XferList(const Rows& rows);

  size_t size() const { return size_; }
  uint64_t total_bytes() const;
  // Those at `indices`. InvalidArgument names the first that is out of range.
  XferList Pick(std::span<const uint32_t> indices) const;
  // All of them; reckoned ones are made.
  std::shared_ptr<const Descriptors> All() const;

  // Both with neighbours that meet on both sides made one. InvalidArgument: unequal lengths.
  static std::pair<XferList, XferList> Merge(const XferList& local, const XferList& remote);

 private:
  // Descriptors first to first + count - 1 of the list.
  struct Strip {
    uint64_t first = 0;
    uint64_t count = 0;
    uint64_t address = 0;
    uint64_t bytes = 0;
    uint64_t stride = 0;
  };
  Descriptor At(uint64_t index) const;

  std::shared_ptr<const Descriptors> all_{};  // shared by copies; null: strips_ say
  std::vector<Strip> strips_{};
  uint64_t even_ = 0;  // all strips have so many; 0: they differ
  uint64_t size_ = 0;
};

// An XferList, an array (N, 2), or a list of pairs.
std::shared_ptr<const Descriptors> ToDescriptors(pybind11::handle object, const char* name);

void BindDescriptorList(pybind11::module_& module);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_DESCRIPTOR_LIST_H_
