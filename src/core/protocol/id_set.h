// A set of 32-bit ids that grows for ever and is mostly filled in runs, e.g. the ids of the regions
// that a peer has deregistered. Memory grows with the number of runs, not of ids.
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
  // Adds the ids from `first` to `last`, both included; some may be in the set already. first <=
  // last.
  void Add(uint32_t first, uint32_t last);
  void Add(uint32_t id) { Add(id, id); }
  bool Contains(uint32_t id) const { return Intersects(id, id); }
  // Whether any id from `first` to `last` is in the set.
  bool Intersects(uint32_t first, uint32_t last) const;
  size_t runs() const { return runs_.size(); }

 private:
  std::map<uint32_t, uint32_t> runs_;  // first → last; no two runs touch
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_ID_SET_H_
