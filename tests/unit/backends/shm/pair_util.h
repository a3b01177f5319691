// Two shm backends in one process, connected, driven by one thread.

#ifndef KVXFER_TESTS_UNIT_BACKENDS_SHM_PAIR_UTIL_H_
#define KVXFER_TESTS_UNIT_BACKENDS_SHM_PAIR_UTIL_H_

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kvxfer/memory.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {

struct Connected {
  Side initiator;
  Side target;
  Endpoint* out = nullptr;
  Endpoint* in = nullptr;

  explicit Connected(bool authorise = true, ControlCarrier control = ControlCarrier::kAuto)
      : initiator(control), target(control) {
    auto endpoint =
        initiator.backend->Connect(target.backend->Describe().address, ReadHostIdentity());
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    initiator.endpoints.push_back(*std::move(endpoint));
    out = initiator.endpoints.front().get();
    EXPECT_TRUE(Drive({&initiator, &target},
                      [this] { return initiator.connected == 1 && target.endpoints.size() == 1; }));
    in = target.endpoints.front().get();
    if (authorise) {
      in->Authorize();
      EXPECT_TRUE(Send(in, "hello"));
      EXPECT_TRUE(Drive({&initiator, &target}, [this] { return initiator.messages.size() == 1; }));
      initiator.messages.clear();
    }
  }
  absl::Status Do(OpKind kind, std::span<const Piece> runs, uint64_t transfer = 1) {
    return Move({&initiator, &target}, initiator, out, kind, runs, transfer);
  }
};

// Memory of one way to reach it.
struct Memory {
  HostBuffer shared;
  std::vector<std::byte> plain;
  MemorySpan span;

  Memory(bool mapped, size_t bytes) {
    if (mapped) {
      shared = *HostBuffer::Allocate(bytes);
      span = shared.span();
    } else {
      plain.resize(bytes);
      span = {.data = plain.data(), .bytes = bytes};
    }
  }
  std::byte* data() const { return static_cast<std::byte*>(span.data); }
};

// A pair with memory of `bytes` at either side; the initiator has imported the target's.
struct ImportedPair : Connected {
  Memory local;
  Memory remote;
  Side::Region here;
  Side::Region there;
  std::unique_ptr<RemoteKey> key;  // null: failed, and the test with it

  ImportedPair(bool mapped, size_t bytes)
      : local(true, bytes),
        remote(mapped, bytes),
        here(initiator.Register(local.span)),
        there(target.Register(remote.span)) {
    auto imported = out->Import(there.remote, there.key);
    EXPECT_TRUE(imported.ok()) << imported.status();
    if (imported.ok()) key = *std::move(imported);
  }
  // All of it.
  Piece Whole() const { return RunBetween(here, there.remote, local.span.bytes, key.get()); }
};

}  // namespace kvxfer::shm_test

#endif  // KVXFER_TESTS_UNIT_BACKENDS_SHM_PAIR_UTIL_H_
