// CUDA streams and events as Python programs have them. Neither torch nor any other library is
// imported for them.
//
// Thread-safety: with the GIL.

#ifndef KVXFER_BINDINGS_PYTHON_STREAM_H_
#define KVXFER_BINDINGS_PYTHON_STREAM_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "kvxfer/types.h"

namespace kvxfer::python {

// Empty: None. A number as the CUDA Array Interface has it (1: the legacy default stream, 2: that
// of the calling thread, else a cudaStream_t; never 0), an object with __cuda_stream__ (cuda.core,
// CuPy, torch) or with cuda_stream (torch), whose 0 is the legacy default stream. TypeError: none
// of these; InvalidArgument: a number that is no stream.
std::optional<CudaStream> ToStream(pybind11::handle object, const char* name);

// What a transfer begins after.
struct StreamOrder {
  std::optional<CudaStream> stream{};
  uint64_t event = 0;               // 0: none
  pybind11::object event_object{};  // whose event that is; valid until the transfer has ended
};

// `event`: None, a cudaEvent_t as a number, or an object with cuda_event (torch) that was recorded.
StreamOrder ToStreamOrder(pybind11::handle stream, pybind11::handle event);

// The number of the CUDA device that `object` (a tensor, a stream) says it is of; -1: it does not.
int DeviceSaid(pybind11::handle object);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_STREAM_H_
