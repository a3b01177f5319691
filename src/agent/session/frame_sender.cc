#include "src/agent/session/frame_sender.h"

#include <span>
#include <string>

namespace kvxfer {
namespace {

// What is larger goes by itself: to piggyback is to copy.
constexpr size_t kMaxPiggybackBytes = 8 * 1024;

}  // namespace

bool FrameSender::Send(Link& link, bool inline_data) {
  if (!SendPiggybacked(link, inline_data)) return false;
  SendKept(session_->channel(), *link.endpoint);
  return true;
}

// The next frame. They take the connection over which the peer spoke last, so that a conversation
// stays on one (tcp then acknowledges with its answers), but for frames whose data goes over
// `link`. False: no space.
bool FrameSender::SendPiggybacked(Link& link, bool inline_data) {
  ReliableChannel& channel = session_->channel();
  const std::string* mine = channel.NextToSend();
  if (mine == nullptr || mine->size() > kMaxPiggybackBytes) return true;
  const ReverseSession::Piggyback piggyback = runtime_->reverse_session->PiggybackTo(peer_);
  if (piggyback.channel == nullptr) return true;
  const std::string* theirs = piggyback.channel->NextToSend();
  if (theirs->size() > kMaxPiggybackBytes) return true;
  const bool back = piggyback.endpoint != nullptr && !inline_data && piggyback.heard > link.heard;
  const std::string message =
      back ? EncodePiggyback(piggyback.channel->received(), session_->number(), *mine, *theirs)
           : EncodePiggyback(channel.received(), piggyback.session, *theirs, *mine);
  Endpoint& endpoint = back ? *piggyback.endpoint : *link.endpoint;
  // What waits for the other connection's room may still go over this one.
  if (!endpoint.Send(std::as_bytes(std::span(message)))) return back;
  channel.MessageSent();
  piggyback.channel->MessageSent();
  (back ? *piggyback.carried : link.carried) = true;
  return true;
}

}  // namespace kvxfer
