#include "bindings/python/memory.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bindings/python/status.h"
#include "bindings/python/tensor_view.h"
#include "bindings/python/wait.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

HostPages ToPages(const std::string& pages) {
  if (pages == "huge") return HostPages::kHuge;
  if (pages == "reserved") return HostPages::kReserved;
  if (pages == "small") return HostPages::kSmall;
  Refuse(absl::StrCat("pages is \"", pages, "\"; expected \"huge\", \"reserved\" or \"small\""));
}

HostBuffer AllocateBuffer(uint64_t bytes, const std::string& pages) {
  const HostPages which = ToPages(pages);
  auto buffer = [&] {
    const WithoutGil without;
    return HostBuffer::Allocate(bytes, which);
  }();
  return Value(std::move(buffer));
}

// The blocks of `view` along `axis`.
PagedRegion PagesOf(py::handle tensor, int64_t axis) {
  TensorView view = TensorView::Of(tensor, "tensor", false);
  const auto dims = static_cast<int64_t>(view.shape.size());
  if (axis < -dims || axis >= dims) {
    Refuse(absl::StrCat("axis is ", axis, "; expected an axis of ", view.Describe()));
  }
  const auto at = static_cast<size_t>(axis < 0 ? axis + dims : axis);
  if (view.strides[at] < 0) {
    Refuse(absl::StrCat("tensor is ", view.Describe(), "; expected blocks in ascending order"));
  }
  const auto stride = static_cast<uint64_t>(view.strides[at]);
  const auto count = static_cast<uint64_t>(view.shape[at]);
  view.shape.erase(view.shape.begin() + static_cast<int64_t>(at));
  view.strides.erase(view.strides.begin() + static_cast<int64_t>(at));
  if (!view.IsDense()) {
    Refuse(absl::StrCat("tensor: a block along axis ", axis, " is ", view.Describe(),
                        "; expected one without gaps: give a PagedRegion for each part of it"));
  }
  return {.base = reinterpret_cast<uint64_t>(view.data),
          .block_bytes = view.bytes(),
          .stride = stride,
          .count = count};
}

std::string Repr(const PagedRegion& region) {
  return absl::StrCat("PagedRegion(base=", region.base, ", block_bytes=", region.block_bytes,
                      ", stride=", region.stride, ", count=", region.count, ")");
}

}  // namespace

HeldMemory HoldMemory(py::handle object, const char* name) {
  if (py::isinstance<RawMemory>(object)) {
    const auto& raw = object.cast<const RawMemory&>();
    return {.span = {.data = reinterpret_cast<void*>(raw.address),
                     .bytes = raw.bytes,
                     .kind = raw.kind,
                     .device_id = raw.device}};
  }
  if (py::isinstance<HostBuffer>(object)) {
    return {.span = object.cast<const HostBuffer&>().span(),
            .object = py::reinterpret_borrow<py::object>(object)};
  }
  TensorView view = TensorView::Of(object, name, true);
  if (!view.IsDense()) {
    Refuse(absl::StrCat(name, " is ", view.Describe(),
                        "; expected contiguous memory: register what it is a part of"));
  }
  const auto address = reinterpret_cast<uint64_t>(view.data);
  return {.span = {.data = view.data,
                   .bytes = view.bytes(),
                   .kind = view.kind,
                   .device_id = view.device},
          .object = py::reinterpret_borrow<py::object>(object),
          .may_move = py::hasattr(object, "data_ptr") && AddressNow(object, 0) == address,
          .hold = std::move(view.hold)};
}

void CheckStillThere(const HeldMemory& memory, uint32_t region) {
  if (!memory.may_move) return;
  const auto registered = reinterpret_cast<uint64_t>(memory.span.data);
  const uint64_t now = AddressNow(memory.object, registered);
  if (now == registered) return;
  Refuse(absl::StrCat("the memory of region ", region, " was freed or moved while registered (",
                      registered, " then, ", now,
                      " now); expected the tensor to stay as it is until deregister_memory"));
}

uint64_t AddressOf(py::handle object, const char* name) {
  if (PyLong_Check(object.ptr()) != 0) return object.cast<uint64_t>();
  if (py::isinstance<HostBuffer>(object)) {
    return reinterpret_cast<uint64_t>(object.cast<const HostBuffer&>().data());
  }
  return reinterpret_cast<uint64_t>(TensorView::Of(object, name, false).data);
}

MemoryKind ToMemoryKind(const std::string& kind) {
  if (kind == "host") return MemoryKind::kHost;
  if (kind == "cuda") return MemoryKind::kCuda;
  Refuse(absl::StrCat("kind is \"", kind, "\"; expected \"host\" or \"cuda\""));
}

const char* NameOf(MemoryKind kind) { return kind == MemoryKind::kHost ? "host" : "cuda"; }

void BindMemory(py::module_& module) {
  py::class_<RawMemory>(module, "RawMemory",
                        "Memory by its address, which the caller keeps mapped until the region is "
                        "deregistered: unmapping it under a transfer is a segmentation fault.")
      .def(py::init([](uint64_t address, uint64_t bytes, const std::string& kind, int device) {
             return RawMemory{address, bytes, ToMemoryKind(kind), device};
           }),
           py::arg("address"), py::arg("bytes"), py::arg("kind") = "host", py::arg("device") = 0)
      .def_readonly("address", &RawMemory::address)
      .def_readonly("bytes", &RawMemory::bytes)
      .def_property_readonly("kind", [](const RawMemory& raw) { return NameOf(raw.kind); })
      .def_readonly("device", &RawMemory::device);

  py::class_<HostBuffer>(module, "HostBuffer", py::buffer_protocol(),
                         "Page-aligned, zeroed memory that peers on the same host can map: the "
                         "fastest for them. Has the buffer protocol.")
      .def(py::init(&AllocateBuffer), py::arg("bytes"), py::arg("pages") = "huge")
      .def_property_readonly(
          "address",
          [](const HostBuffer& buffer) { return reinterpret_cast<uint64_t>(buffer.data()); })
      .def_property_readonly("bytes", &HostBuffer::size)
      .def("__len__", &HostBuffer::size)
      .def_buffer([](HostBuffer& buffer) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(buffer.data()),
                               static_cast<py::ssize_t>(buffer.size()));
      });

  py::class_<PagedRegion>(module, "PagedRegion",
                          "Equal blocks at equal distances: block i covers block_bytes bytes from "
                          "base + i * stride on, for i < count; all in bytes.")
      .def(py::init([](uint64_t base, uint64_t block_bytes, uint64_t stride, uint64_t count) {
             return PagedRegion{base, block_bytes, stride, count};
           }),
           py::arg("base"), py::arg("block_bytes"), py::arg("stride"), py::arg("count"))
      .def_static("of", &PagesOf, py::arg("tensor"), py::arg("axis") = 0,
                  "The blocks of a tensor along `axis`, each without gaps. InvalidArgument.")
      .def_readwrite("base", &PagedRegion::base)
      .def_readwrite("block_bytes", &PagedRegion::block_bytes)
      .def_readwrite("stride", &PagedRegion::stride)
      .def_readwrite("count", &PagedRegion::count)
      .def("__eq__", [](const PagedRegion& a, const PagedRegion& b) { return a == b; })
      .def("__repr__", &Repr)
      .def(py::pickle(
          [](const PagedRegion& region) {
            return py::make_tuple(region.base, region.block_bytes, region.stride, region.count);
          },
          [](const py::tuple& state) {
            return PagedRegion{state[0].cast<uint64_t>(), state[1].cast<uint64_t>(),
                               state[2].cast<uint64_t>(), state[3].cast<uint64_t>()};
          }));
}

}  // namespace kvxfer::python
