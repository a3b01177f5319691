#include "bindings/python/descriptor_list.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "bindings/python/status.h"
#include "bindings/python/wait.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

// What one list may have: 2^32 indices.
constexpr uint64_t kMostDescriptors = uint64_t{1} << 32;

[[noreturn]] void RefuseIndex(uint64_t at, uint64_t index, uint64_t size) {
  Refuse("indices[" + std::to_string(at) + "] is " + std::to_string(index) +
         "; expected 0 to below " + std::to_string(size) + ", the length of the list");
}

std::shared_ptr<const Descriptors> FromPairs(py::handle object, const char* name) {
  const auto list = py::reinterpret_steal<py::object>(PySequence_Tuple(object.ptr()));
  if (!list) {
    PyErr_Clear();
    throw py::type_error(std::string(name) + " is a " + Py_TYPE(object.ptr())->tp_name +
                         "; expected an array (N, 2) of int64 or a list of (address, bytes)");
  }
  Descriptors all;
  const Py_ssize_t n = PyTuple_GET_SIZE(list.ptr());
  all.reserve(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n; ++i) {
    const py::handle item = PyTuple_GET_ITEM(list.ptr(), i);
    try {
      const auto pair = item.cast<std::pair<uint64_t, uint64_t>>();
      all.push_back({.address = pair.first, .bytes = pair.second});
    } catch (const py::cast_error&) {
      throw py::type_error(std::string(name) + "[" + std::to_string(i) + "] is " +
                           py::repr(item).cast<std::string>() +
                           "; expected (address, bytes), neither negative");
    }
  }
  return std::make_shared<const Descriptors>(std::move(all));
}

std::shared_ptr<const Descriptors> FromArray(py::handle object, const char* name) {
  constexpr char kExpected[] = "an array (N, 2) of int64 or uint64, rows of (address, bytes)";
  const Rows rows = ToRows(object, name, kExpected);
  if (rows.columns != 2) {
    Refuse(std::string(name) + " has " + std::to_string(rows.columns) + " columns; expected " +
           kExpected);
  }
  Descriptors all(rows.count);
  for (size_t i = 0; i < rows.count; ++i) all[i] = {rows.at(i, 0), rows.at(i, 1)};
  return std::make_shared<const Descriptors>(std::move(all));
}

}  // namespace

XferList::XferList(const Rows& rows) {
  if (rows.columns == 3) {
    Descriptors all(rows.count);
    for (size_t i = 0; i < rows.count; ++i) all[i] = {rows.at(i, 0), rows.at(i, 1)};
    size_ = all.size();
    all_ = std::make_shared<const Descriptors>(std::move(all));
    return;
  }
  if (rows.columns != 5) {
    Refuse("rows have " + std::to_string(rows.columns) +
           " columns; expected 3 (address, bytes, device) or 5 (and stride, count)");
  }
  strips_.reserve(rows.count);
  for (size_t i = 0; i < rows.count; ++i) {
    const Strip strip{.first = size_,
                      .count = rows.at(i, 4),
                      .address = rows.at(i, 0),
                      .bytes = rows.at(i, 1),
                      .stride = rows.at(i, 3)};
    if (strip.count > kMostDescriptors - size_) {
      Refuse("row " + std::to_string(i) + " makes the list longer than 2^32 descriptors");
    }
    size_ += strip.count;
    strips_.push_back(strip);
  }
  const bool even = std::ranges::all_of(
      strips_, [this](const Strip& strip) { return strip.count == strips_.front().count; });
  even_ = even && !strips_.empty() ? strips_.front().count : 0;
}

Descriptor XferList::At(uint64_t index) const {
  const Strip* strip = nullptr;
  if (even_ != 0) {
    strip = &strips_[index / even_];
  } else {
    const auto after = std::ranges::upper_bound(strips_, index, {}, &Strip::first);
    strip = &*std::prev(after);
  }
  return {.address = strip->address + (index - strip->first) * strip->stride,
          .bytes = strip->bytes};
}

uint64_t XferList::total_bytes() const {
  uint64_t sum = 0;
  if (all_ != nullptr) {
    for (const Descriptor& each : *all_) sum += each.bytes;
  }
  for (const Strip& strip : strips_) sum += strip.bytes * strip.count;
  return sum;
}

XferList XferList::Pick(std::span<const uint32_t> indices) const {
  Descriptors picked(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint32_t index = indices[i];  // once: the array may change meanwhile
    if (index >= size_) RefuseIndex(i, index, size_);
    picked[i] = all_ != nullptr ? (*all_)[index] : At(index);
  }
  return XferList(std::move(picked));
}

std::shared_ptr<const Descriptors> XferList::All() const {
  if (all_ != nullptr) return all_;
  Descriptors all;
  all.reserve(size_);
  for (uint64_t i = 0; i < size_; ++i) all.push_back(At(i));
  return std::make_shared<const Descriptors>(std::move(all));
}

std::pair<XferList, XferList> XferList::Merge(const XferList& local, const XferList& remote) {
  if (local.size() != remote.size()) {
    Refuse("local has " + std::to_string(local.size()) + " descriptors and remote " +
           std::to_string(remote.size()) + "; expected as many");
  }
  const auto ours = local.All();
  const auto theirs = remote.All();
  Descriptors merged_local;
  Descriptors merged_remote;
  const auto meets = [](const Descriptor& before, const Descriptor& next) {
    return before.address + before.bytes == next.address;
  };
  for (size_t i = 0; i < ours->size(); ++i) {
    const Descriptor& here = (*ours)[i];
    const Descriptor& there = (*theirs)[i];
    if (!merged_local.empty() && meets(merged_local.back(), here) &&
        meets(merged_remote.back(), there)) {
      merged_local.back().bytes += here.bytes;
      merged_remote.back().bytes += there.bytes;
    } else {
      merged_local.push_back(here);
      merged_remote.push_back(there);
    }
  }
  return {XferList(std::move(merged_local)), XferList(std::move(merged_remote))};
}

std::shared_ptr<const Descriptors> ToDescriptors(py::handle object, const char* name) {
  if (py::isinstance<XferList>(object)) return object.cast<const XferList&>().All();
  if (PyObject_CheckBuffer(object.ptr()) != 0 || py::hasattr(object, "__dlpack__")) {
    return FromArray(object, name);
  }
  return FromPairs(object, name);
}

namespace {

// Each pair of lists in one go; ranges may not overlap.
void CopyBlocks(py::handle destination, py::handle source) {
  const auto to = ToDescriptors(destination, "destination");
  const auto from = ToDescriptors(source, "source");
  if (to->size() != from->size()) {
    Refuse("destination has " + std::to_string(to->size()) + " blocks and source " +
           std::to_string(from->size()) + "; expected as many");
  }
  for (size_t i = 0; i < to->size(); ++i) {
    if ((*to)[i].bytes != (*from)[i].bytes) {
      Refuse("destination[" + std::to_string(i) + "] has " + std::to_string((*to)[i].bytes) +
             " bytes and source[" + std::to_string(i) + "] " + std::to_string((*from)[i].bytes) +
             "; expected as many");
    }
  }
  const WithoutGil without;
  for (size_t i = 0; i < to->size(); ++i) {
    std::memmove(reinterpret_cast<void*>((*to)[i].address),
                 reinterpret_cast<const void*>((*from)[i].address), (*to)[i].bytes);
  }
}

}  // namespace

void BindDescriptorList(py::module_& module) {
  py::class_<XferList>(module, "_XferList",
                       "Descriptors of (address, bytes), to pick from by index. Immutable.")
      .def(py::init([](const py::object& rows) {
             return XferList(ToRows(rows, "rows",
                                    "an array (N, 3) or (N, 5) of int64 or uint64: address, bytes, "
                                    "device, and stride and count"));
           }),
           py::arg("rows"))
      .def("__len__", &XferList::size)
      .def_property_readonly("total_bytes", &XferList::total_bytes)
      .def(
          "pick",
          [](const XferList& list, const py::object& indices) {
            const Ids ids(indices, "indices");
            const WithoutGil without;
            return list.Pick(ids.span());
          },
          py::arg("indices"))
      .def_static(
          "merge",
          [](const XferList& local, const XferList& remote) {
            const WithoutGil without;
            return XferList::Merge(local, remote);
          },
          py::arg("local"), py::arg("remote"));
  module.def(
      "copy_blocks", &CopyBlocks, py::arg("destination"), py::arg("source"),
      "Copies blocks within this process, without the GIL. InvalidArgument: lists of unequal "
      "lengths, or blocks of unequal bytes.");
}

}  // namespace kvxfer::python
