// Fetches an agent's metadata over the port where its tcp backend listens. With it workers find
// each other through one port each and need no other channel. The agent must have been created with
// AgentOptions::serve_metadata. The exchange is neither authenticated nor encrypted.
//
// Thread-safety: any thread. The calling side needs no agent.
//
// Example:
//   auto metadata = kvxfer::FetchMetadata("10.0.0.2:7471", std::chrono::seconds(5));
//   if (metadata.ok()) auto peer = agent.AddPeer(*metadata);

#ifndef KVXFER_METADATA_H_
#define KVXFER_METADATA_H_

#include <functional>
#include <future>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer {

// Returns the current Agent::Metadata of the agent at `address`, for AddPeer. `address` is what
// that agent's listen_address returns, or a host name: "host:port" or "[v6]:port"; without a port,
// kDefaultPort. If a name has several addresses, each is tried.
//
// Returns within `timeout`, except that the resolver has time-outs of its own; numeric addresses
// need no resolver. `go_on`, if given, is called on this thread at least every 50 ms while the call
// waits; if it returns false, the call ends.
//
// Unavailable: nobody listens there, no route (both with errno), the agent is closing, or it serves
// too many requests at once; a later attempt may succeed. DeadlineExceeded: no connection or no
// complete answer within `timeout`. FailedPrecondition: the agent does not serve its metadata, or
// has another protocol version. InvalidArgument: a bad address. Internal: the answer is damaged, or
// does not come from an agent. Cancelled: `go_on` returned false. ResourceExhausted: no descriptors
// left.
absl::StatusOr<std::string> FetchMetadata(std::string_view address, Duration timeout,
                                          const std::function<bool()>& go_on = {});

// The same without waiting: fetches on a thread of its own, which ends by `timeout` as above, and
// returns at once. The future has what FetchMetadata returns. It may be dropped, and does not wait
// then; the fetch goes on until it ends by itself, so what `go_on` refers to must last as long.
// `go_on` is called on that thread. ResourceExhausted, also through the future: no thread could be
// started.
std::future<absl::StatusOr<std::string>> FetchMetadataAsync(const std::string& address,
                                                            Duration timeout,
                                                            std::function<bool()> go_on = {});

}  // namespace kvxfer

#endif  // KVXFER_METADATA_H_
