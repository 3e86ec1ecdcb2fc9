#include "wire/remote_end.hpp"

#include <fmt/format.h>

#include "base/try.hpp"
#include "wire/peers.hpp"

namespace sidestep::wire {

Result<void> RemoteEnd::commit() {
    // Memory has what was confirmed.
    if (!far_ || !buffer().place().is_file()) return {};
    // To flush a large file takes as long as it does; a node that is gone is noticed all the same.
    SIDESTEP_CHECK(far_->peer->ask(Word::commit, to_body(far_->attached.region), Peer::Time::max()));
    return {};
}

std::vector<std::string> RemoteEnd::notes() const {
    std::vector<std::string> notes;
    if (own_) notes.push_back(fmt::format("this machine moved them {}", way_));
    if (!far_) return notes;
    if (buffer().place().is_file()) notes = report().notes;
    if (const auto bridge = take_used())
        if (std::string note = bridge->note(); !note.empty()) notes.push_back(std::move(note));
    if (!far_->attached.way.empty())
        notes.push_back(fmt::format("{} moved them {}", buffer().place().node(), far_->attached.way));
    if (far_->peer->tells_engine())
        notes.push_back(
            fmt::format("{} was reached by {}", buffer().place().node(), far_->peer->engine_words()));
    if (std::string news = far_->peer->take_news(); !news.empty()) notes.push_back(std::move(news));
    const int now = far_->peer->links_lost();
    if (const int times = now - lost_.exchange(now); times > 0)
        notes.push_back(
            fmt::format("the connection to {} was lost {}; they went on over {}", buffer().place().node(),
                        times == 1 ? "once" : fmt::format("{} times", times), far_->peer->where()));
    return notes;
}

Report RemoteEnd::report() const {
    const auto answer = far_->peer->ask(Word::report, to_body(far_->attached.region), Peers::in_time());
    auto told = answer ? parse_report(*answer) : Result<Report>(answer.error());
    return told ? std::move(*told)
                : Report{{fmt::format("{} did not say how it used the file", buffer().place().node())}, {}};
}

}  // namespace sidestep::wire
