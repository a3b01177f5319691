// Memory of Python programs as kvxfer registers it, and what keeps it alive meanwhile.
//
// Thread-safety: with the GIL.

#ifndef KVXFER_BINDINGS_PYTHON_MEMORY_H_
#define KVXFER_BINDINGS_PYTHON_MEMORY_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "kvxfer/memory.h"

namespace kvxfer::python {

// Memory by its address; whoever names it keeps it mapped.
struct RawMemory {
  uint64_t address = 0;
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device = 0;
};

// What was registered, and the object that it is of.
struct HeldMemory {
  MemorySpan span{};
  pybind11::object object{};     // of a tensor: asked whether it still lies there
  bool may_move = false;         // a tensor whose storage can be let go of while it is held
  std::shared_ptr<void> hold{};  // its memory, until this is gone
};

// `writable`: refuses what must not be written to. InvalidArgument names what is wrong with
// `name`: gaps, no bytes, read-only.
HeldMemory HoldMemory(pybind11::handle object, const char* name);

// InvalidArgument: the tensor does not lie any more where it was registered.
void CheckStillThere(const HeldMemory& memory, uint32_t region);

// An address: of a tensor, or the number itself.
uint64_t AddressOf(pybind11::handle object, const char* name);

MemoryKind ToMemoryKind(const std::string& kind);
const char* NameOf(MemoryKind kind);

void BindMemory(pybind11::module_& module);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_MEMORY_H_
