#include "backend/rails.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "base/try.hpp"

namespace sidestep::backend {

Result<void> Rail::send_all(std::span<const Outgoing> frames, std::function<void()> sent) {
    Result<void> done;
    count_sent(frames.size(), std::move(sent), [&](std::size_t i, std::function<void()> told) {
        if (done) done = send(frames[i].frame, frames[i].payload, std::move(told));
    });
    return done;
}

// What goes out is given to the rail with the least on its way. So little is as good as nothing: small frames go together.
constexpr Bytes little = Bytes{16} << 10;

class RailEngine::RailLink final : public Link, public std::enable_shared_from_this<RailLink> {
public:
    RailLink(RailEngine& engine, std::weak_ptr<LinkOwner> owner)
        : engine_(engine), name_(engine.name_), kind_(engine.kind_), owner_(std::move(owner)) {}
    ~RailLink() override {
        closing_.store(true);
        finish(has_ended(), false);
    }

    Result<void> add(int socket, const SocketKeys& keys) override;
    std::size_t sockets() const override { return rails()->size(); }
    bool scatters() const override { return kind_.scatters; }
    Bytes direct_above() const override { return kind_.direct_above; }
    std::string_view engine() const override { return name_; }
    std::string over() const override;
    void send(const Frame& frame, const void* payload, std::function<void()> sent) override;
    void send_all(std::span<const Outgoing> frames, std::function<void()> sent) override;
    void look() override;
    void resume(Resume whom) override;
    void close(Error why) override;
    void end(Error why) override;

    void look_after();
    void probe() {
        const auto all = rails();
        for (const auto& rail : *all) rail->probe();
    }

private:
    using Rails = std::vector<std::shared_ptr<Rail>>;
    std::shared_ptr<const Rails> rails() const {
        std::lock_guard lock(mutex_);
        return rails_;
    }
    Error has_ended() const {
        return Error{ErrorCode::io_error, "the link to the other machine has ended", std::string(name_), {}};
    }
    void finish(const Error& why, bool tell);
    // By the rail with the least on its way, of those that are nearest to the payload and to where it goes.
    template <typename Send>
    void send_by(const void* payload, const Frame& frame, Send&& send) {
        const auto all = rails();
        if (all->empty()) return;
        const auto rank = [&](const auto& rail) {
            return std::pair(rail->distance(payload, frame.to_gpu), rail->queued() / little);
        };
        const auto least = std::min_element(all->begin(), all->end(),
                                            [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
        if (auto done = send(**least); !done) close(done.error());
    }

    RailEngine& engine_;  // not touched once the link has ended
    const std::string_view name_;
    const Kind kind_;
    const std::weak_ptr<LinkOwner> owner_;
    std::atomic<bool> closing_{false};
    std::mutex adding_;         // held while a rail is made: each has a number of its own
    mutable std::mutex mutex_;  // guards what follows
    std::condition_variable finished_;
    bool ended_ = false;
    std::shared_ptr<const Rails> rails_ = std::make_shared<const Rails>();  // made anew for each that comes
    std::size_t next_ = 0;                                                  // of them, to be resumed
};

Result<void> RailEngine::RailLink::add(int socket, const SocketKeys& keys) {
    std::lock_guard adding(adding_);
    SIDESTEP_TRY(auto rail, engine_.rail(socket, sockets(), keys));
    SIDESTEP_CHECK(engine_.later({}));
    std::lock_guard lock(mutex_);
    if (ended_ || closing_.load()) return has_ended();
    // It keeps neither: it may be called once more while they go.
    SIDESTEP_CHECK(rail->watch([link = weak_from_this(), rail = std::weak_ptr(rail)](const Rail::Step& step) {
        const auto self = link.lock();
        const auto one = rail.lock();
        if (!self || !one) return;
        const auto owner = self->owner_.lock();
        const Result<void> done = owner ? step(*owner) : self->has_ended();
        if (owner) owner->caught_up();
        if (!done) self->close(done.error());
    }));
    Rails more = *rails_;
    more.push_back(std::move(rail));
    rails_ = std::make_shared<const Rails>(std::move(more));
    return {};
}

void RailEngine::RailLink::send(const Frame& frame, const void* payload, std::function<void()> sent) {
    send_by(payload, frame, [&](Rail& rail) { return rail.send(frame, payload, std::move(sent)); });
}

void RailEngine::RailLink::send_all(std::span<const Outgoing> frames, std::function<void()> sent) {
    std::vector<Outgoing> finished;
    if (!kind_.finishes && std::any_of(frames.begin(), frames.end(),
                                       [](const Outgoing& one) { return one.finish != nullptr; })) {
        finished.assign(frames.begin(), frames.end());
        for (Outgoing& one : finished) {
            one.frame = one.finished();
            one.finish = nullptr;
        }
        frames = finished;
    }
    send_by(frames.front().payload, frames.front().frame,
            [&](Rail& rail) { return rail.send_all(frames, std::move(sent)); });
}

std::string RailEngine::RailLink::over() const {
    std::set<std::string> names;
    for (const auto& rail : *rails()) names.insert(rail->over());
    names.erase(std::string());
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    return all;
}

void RailEngine::RailLink::look() {
    const auto owner = owner_.lock();
    if (!owner) return;
    const auto all = rails();
    for (const auto& rail : *all)
        if (auto done = rail->look(*owner); !done) close(done.error());
    owner->caught_up();
}

void RailEngine::RailLink::look_after() {
    const auto all = rails();
    if (std::all_of(all->begin(), all->end(), [](const auto& rail) { return rail->lives(); })) return;
    close(Error{ErrorCode::timed_out, "the other machine does not say that it has what was sent",
                std::string(name_), "see whether the machine lives and is reached"});
}

void RailEngine::RailLink::resume(Resume whom) {
    std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < rails_->size(); ++i) {
        const std::size_t turn = (next_ + i) % rails_->size();
        if (!(*rails_)[turn]->resume(whom == Resume::all) || whom == Resume::all) continue;
        next_ = turn + 1;
        return;
    }
}

void RailEngine::RailLink::close(Error why) {
    if (closing_.exchange(true)) return;
    const auto all = rails();
    for (const auto& rail : *all) rail->shut_down();
    static_cast<void>(
        engine_.later([self = shared_from_this(), why = std::move(why)] { self->finish(why, true); }));
}

void RailEngine::RailLink::end(Error why) {
    if (!closing_.exchange(true)) return finish(why, true);
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return ended_; });
}

void RailEngine::RailLink::finish(const Error& why, bool tell) {
    auto all = std::make_shared<const Rails>();
    {
        std::lock_guard lock(mutex_);
        all.swap(rails_);
    }
    for (const auto& rail : *all) {
        rail->shut_down();
        rail->end();
    }
    if (const auto owner = tell ? owner_.lock() : nullptr) owner->ended(why);
    std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true)) return;
    finished_.notify_all();
    engine_.link_ended();
}

Result<void> RailEngine::refuse(const SocketKeys& keys) const {
    if (keys.empty()) return {};
    return Error{ErrorCode::unsupported, "what goes over it cannot be encrypted", std::string(name_), {}};
}

std::shared_ptr<Link> RailEngine::link(std::weak_ptr<LinkOwner> owner) {
    auto link = std::make_shared<RailLink>(*this, std::move(owner));
    std::lock_guard lock(mutex_);
    ++running_;
    std::erase_if(links_, [](const auto& one) { return one.expired(); });
    links_.push_back(link);
    return link;
}

std::vector<std::shared_ptr<RailEngine::RailLink>> RailEngine::links() const {
    std::vector<std::shared_ptr<RailLink>> all;
    std::lock_guard lock(mutex_);
    for (const auto& weak : links_)
        if (auto link = weak.lock()) all.push_back(std::move(link));
    return all;
}

void RailEngine::end_links() {
    for (const auto& link : links())
        link->end(
            Error{ErrorCode::cancelled, "the connection was closed on this side", std::string(name_), {}});
    // One that goes by itself at this time still uses what its rails do.
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [this] { return running_ == 0; });
}

void RailEngine::look_after_links() {
    for (const auto& link : links()) link->look_after();
}

void RailEngine::probe_links() {
    for (const auto& link : links()) link->probe();
}

// With the mutex held: the link may be the last, and this object gone as soon as it has ended.
Result<void> RailEngine::later(base::Workers::Task task) {
    Result<void> added;
    {
        std::lock_guard lock(mutex_);
        added = ending_.add([task] {
            if (task) task();
        });
    }
    if (!added && task) task();
    return added;
}

void RailEngine::link_ended() {
    std::lock_guard lock(mutex_);
    if (--running_ == 0) all_ended_.notify_all();
}

}  // namespace sidestep::backend
