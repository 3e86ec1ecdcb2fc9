// What engines share whose links go over several rails: a rail is a socket, or what two ends joined over one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "backend/network.hpp"
#include "base/workers.hpp"

namespace sidestep::backend {

// Frames to and from the other end, those of one rail in order. Any thread.
class Rail {
public:
    virtual ~Rail() = default;

    // What the rail does on a thread of its own. `run` finds the owner, ends the link after an error, and calls no step of a
    // rail that is gone.
    using Step = std::function<Result<void>(LinkOwner& owner)>;
    using Run = std::function<void(const Step& step)>;
    // It begins. Once, before all else.
    virtual Result<void> watch(Run run) = 0;

    // What waits to go out or is on its way, in bytes.
    virtual Bytes queued() const = 0;
    // How far what it goes over is from that memory here, and from that GPU of the other machine (Frame::to_gpu): 0 is nearest. A
    // link prefers the nearest of its rails.
    virtual int distance(const void* payload, unsigned to_gpu) const {
        static_cast<void>(payload), static_cast<void>(to_gpu);
        return 0;
    }
    // As Link::over().
    virtual std::string over() const { return {}; }
    // As Link::send(). An error where the rail has failed, here and below.
    virtual Result<void> send(const Frame& frame, const void* payload, std::function<void()> sent) = 0;
    virtual Result<void> send_all(std::span<const Outgoing> frames, std::function<void()> sent);
    // Takes in what has come, unless another thread does.
    virtual Result<void> look(LinkOwner& owner) = 0;
    // After somebody was told `later`: one is asked again, or all. Answers whether anybody waited here.
    virtual bool resume(bool all) = 0;
    // The other end may be out of reach: owners of work that is under way have to learn it.
    virtual void probe() {}
    // To be called once a second, by one thread. False where the other end has been silent for too long.
    virtual bool lives() { return true; }

    // Both ends see the end.
    virtual void shut_down() const = 0;
    // Nothing is called or touched after it; waits for what is. What waits to go out is dropped. Not in a call of the owner.
    virtual void end() = 0;
};

// Links over rails, and the thread on which they end. An engine derives from it, and calls end_links() in its destructor,
// before what its rails use goes.
class RailEngine : public NetworkEngine {
public:
    std::shared_ptr<Link> link(std::weak_ptr<LinkOwner> owner) final;

protected:
    // What holds for all links of an engine: as Link has it.
    struct Kind {
        bool scatters = false;
        Bytes direct_above = Link::never;
        bool finishes = false;  // its rails call Outgoing::finish
    };
    // `name` lives as long as the program.
    RailEngine(std::string_view name, Kind kind)
        : name_(name), kind_(kind), ending_({.threads = 1}, "links that end") {}
    // unsupported where there are keys, for engines that do not encrypt.
    Result<void> refuse(const SocketKeys& keys) const;
    // Takes the socket, after an error too. `number`: of rails that the link has already. out_of_memory where no thread or no
    // memory can be had for it.
    virtual Result<std::shared_ptr<Rail>> rail(int socket, std::size_t number, const SocketKeys& keys) = 0;
    // Ends all links, and tells their owners. Not on a thread of the engine.
    void end_links();
    // Of each rail of each link.
    void look_after_links();
    void probe_links();

private:
    class RailLink;
    std::vector<std::shared_ptr<RailLink>> links() const;
    // On the thread where links end; on this one, and an error, where it cannot be had.
    Result<void> later(base::Workers::Task task);
    void link_ended();

    const std::string_view name_;
    const Kind kind_;
    mutable std::mutex mutex_;  // guards what follows
    std::size_t running_ = 0;   // links that have not ended
    std::condition_variable all_ended_;
    std::vector<std::weak_ptr<RailLink>> links_;

    base::Workers ending_;  // in no call of a link
};

}  // namespace sidestep::backend
