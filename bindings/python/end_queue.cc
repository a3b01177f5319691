#include "bindings/python/end_queue.h"

#include <pybind11/stl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bindings/python/status.h"

namespace kvxfer::python {

EndQueue::EndQueue() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (fd_ >= 0) return;
  throw StatusError(absl::ResourceExhaustedError(
      absl::StrCat("eventfd: ", std::strerror(errno),
                   "; raise the limit of open files (ulimit -n, LimitNOFILE= of systemd)")));
}

EndQueue::~EndQueue() { close(fd_); }

void EndQueue::Push(uint64_t key) {
  const std::lock_guard lock(mu_);
  keys_.push_back(key);
  const uint64_t one = 1;
  (void)!write(fd_, &one, sizeof(one));
}

std::vector<uint64_t> EndQueue::Pop() {
  const std::lock_guard lock(mu_);
  uint64_t count = 0;
  (void)!read(fd_, &count, sizeof(count));
  return std::exchange(keys_, {});
}

void BindEndQueue(pybind11::module_& module) {
  pybind11::class_<EndQueue, std::shared_ptr<EndQueue>>(module, "_EndQueue")
      .def(pybind11::init<>())
      .def_property_readonly("fd", &EndQueue::fd)
      .def("pop", &EndQueue::Pop);
}

}  // namespace kvxfer::python
