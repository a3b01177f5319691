// What has ended, for an event loop that watches a descriptor: transfers and agents, by keys that
// the loop chose. So nothing of kvxfer ever calls into Python.
//
// Thread-safety: any thread, with the GIL or without.

#ifndef KVXFER_BINDINGS_PYTHON_END_QUEUE_H_
#define KVXFER_BINDINGS_PYTHON_END_QUEUE_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace kvxfer::python {

class EndQueue {
 public:
  EndQueue();  // ResourceExhausted
  ~EndQueue();
  EndQueue(const EndQueue&) = delete;
  EndQueue& operator=(const EndQueue&) = delete;

  // Readable while there are keys.
  int fd() const { return fd_; }
  void Push(uint64_t key);
  std::vector<uint64_t> Pop();

 private:
  std::mutex mu_;
  std::vector<uint64_t> keys_;  // by mu_
  int fd_ = -1;
};

void BindEndQueue(pybind11::module_& module);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_END_QUEUE_H_
