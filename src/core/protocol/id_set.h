// A set of 32-bit ids that grows for ever and is told mostly in runs, such as the ids of regions
// that a peer has deregistered: memory goes with the runs, not with the ids.
//
// Thread-safety: none.

#ifndef KVXFER_CORE_PROTOCOL_ID_SET_H_
#define KVXFER_CORE_PROTOCOL_ID_SET_H_

#include <cstddef>
#include <cstdint>
#include <map>

namespace kvxfer {

class IdSet {
 public:
  // Adds `first` to `last`, both included; some of them may be in it already. first <= last.
  void Add(uint32_t first, uint32_t last);
  void Add(uint32_t id) { Add(id, id); }
  bool Contains(uint32_t id) const { return Intersects(id, id); }
  // Whether any of `first` to `last` is in it.
  bool Intersects(uint32_t first, uint32_t last) const;
  size_t runs() const { return runs_.size(); }

 private:
  std::map<uint32_t, uint32_t> runs_;  // first → last; no two touch
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_ID_SET_H_
