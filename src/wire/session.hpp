// What two machines do with each other's memory over a link: pushes, and answers to those who ask for them.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "backend/backend.hpp"
#include "backend/network.hpp"
#include "wire/pace.hpp"
#include "wire/parts.hpp"
#include "wire/ranges.hpp"
#include "wire/slots.hpp"
#include "wire/traffic.hpp"

namespace sidestep::wire {

class Bundle;
class Session;

// A part of this machine that the other one may read or write, or both. What it holds lasts until the last byte that was
// on its way has come.
struct Region {
    Bytes size = 0;  // Buffer::whole: a file that takes what comes
    bool readable = false;
    bool writable = false;
    unsigned char* address = nullptr;  // host memory, which needs no slots; null: by the ways below
    std::optional<Way> in;             // pushed bytes, out of a slot
    std::optional<Way> out;            // asked for, into a slot
    std::shared_ptr<Slots> slots_in;   // of the session, for all its regions
    std::shared_ptr<Slots> slots_out;  // others, so that two machines that wait for each other's slots go on
    std::shared_ptr<const void> keeps{};  // the memory
    // Memory of a GPU: where it begins, and what keeps it ready for each engine that reaches it. Small pieces, and all over
    // links of other engines, go by the slots. `see_writes`: before what has come is confirmed.
    unsigned char* device_address = nullptr;
    struct Reached {
        std::string_view engine;
        std::shared_ptr<const void> ready;
    };
    std::vector<Reached> reached{};
    std::function<Result<void>()> see_writes{};
    // One of a third machine, `target` of that session; nothing above but the size is of use then.
    std::shared_ptr<Session> beyond{};
    std::uint64_t target = 0;
    std::string name;                    // for people
    std::shared_ptr<Traffic> traffic{};  // counts what goes in and out; may be null
    std::shared_ptr<Pace> pace{};        // bounds it; may be null

    // invalid_argument where the range lies outside.
    Result<void> check(Bytes offset, Bytes bytes) const;
};

// One end; both are alike. Any thread. Lives in a shared_ptr.
class Session final : public backend::LinkOwner, public std::enable_shared_from_this<Session> {
public:
    // `peer`: the other machine's name, for errors.
    explicit Session(std::string peer) : peer_(std::move(peer)) {}
    // Pieces that it was asked for have ended by then: Link::close() and a wait for ended() come first.
    ~Session() override = default;

    // Once, before all else.
    void use(std::shared_ptr<backend::Link> link);
    std::shared_ptr<backend::Link> link() const;

    // From now on the session outlives its links: where one ends, what it carried waits for renew(). `lost` is called each
    // time that one has ended, on any thread; it must not block.
    void outlive_links(std::function<void(const Error&)> lost);
    // Waits until nothing is in flight any more that a link which has ended had brought; false: not in time. What
    // comes over the next one would else be overwritten.
    bool settle(std::chrono::steady_clock::time_point until) const;
    // The next link, after the last has ended; it may have its sockets before replay(), which sends once more what nobody
    // has confirmed, and asks for what has not come. Both fail where the session has ended, replay() also where this
    // link has.
    Result<void> renew(std::shared_ptr<backend::Link> link);
    Result<void> replay();
    // Ends the session, and with it what it waits for; after outlive_links() nothing else does, but for an end that breaks
    // the protocol.
    void give_up(const Error& why);
    // How many links it has outlived.
    unsigned renewed() const { return renewed_.load(std::memory_order_relaxed); }

    // Brings bytes of this machine to a region of the other, or from there. The flight is ended once they are where they
    // belong, or when that has failed; not where an error is answered. Only bounds that the other end gave are
    // looked at there. `own`: memory of a GPU here, which holds them all; null: memory of the host. `to_gpu`: as in Frame.
    Result<backend::Progress> push(const void* from, std::uint64_t region, Bytes offset, Bytes size,
                                   backend::Flight& flight, std::shared_ptr<Region> own = {},
                                   std::uint8_t to_gpu = 0);
    Result<void> pull(std::uint64_t region, Bytes offset, Bytes size, void* to, backend::Flight& flight,
                      std::shared_ptr<Region> own = {}, std::uint8_t to_gpu = 0);
    // As push() and pull(), many parts as one; `told` is called once, on any thread, this one too.
    using Told = std::function<void(const Result<void>&)>;
    void bring(std::vector<Part> parts, Told told, std::shared_ptr<Region> own = {});
    void fetch(std::vector<Part> parts, Told told, std::shared_ptr<Region> own = {});
    // Has the other machine bring them to a third one, each to its target. `told` as a flight would be.
    Result<void> pass(std::vector<Part> parts, Told told);

    // Lets the other machine reach a region, under the number that is answered, until it is withdrawn.
    std::uint64_t grant(std::shared_ptr<Region> region);
    void withdraw(std::uint64_t number);
    // A slot of memory of a GPU here has been given back, which this session may wait for.
    void go_on_with_slots();

    // Something that this end asked for is on its way.
    bool waits() const {
        std::lock_guard lock(mutex_);
        return !requests_.empty();
    }
    // Something small that this end asked for is on its way: a look by whoever waits is worth while. It would only be in the way of
    // the threads that move something large.
    bool worth_a_look() const { return small_.load(std::memory_order_relaxed) > 0; }
    // What ended the session; nothing while it lasts, or waits for a link.
    std::optional<Error> end() const;
    // It waits for renew().
    bool waits_for_link() const;
    // Bytes that came, and that went.
    Bytes received() const { return received_.load(std::memory_order_relaxed); }
    Bytes sent() const { return sent_.load(std::memory_order_relaxed); }

    Result<backend::Landing> landing(const backend::Frame& frame) override;
    Result<void> arrived(const backend::Frame& frame, backend::Landing landing) override;
    void caught_up() override;
    void ended(Error error) override;

private:
    static constexpr Bytes small_request = Bytes{64} << 10;
    // Of frames that sockets bring for a GPU: Slots::Slot::Direction::in_later.
    static constexpr Bytes later_from = Bytes{512} << 10;
    // With more of them under way, one more may wait for others.
    static constexpr int few_requests = 2;
    // Bounds of what the other end can make this one keep.
    static constexpr std::size_t most_fetches = std::size_t{1} << 17;
    static constexpr Bytes most_on_the_way = Bytes{64} << 20;
    // Of another end's own bound no more is asked for at a time: what is begun beyond waits here.
    static constexpr std::size_t most_questions = most_fetches / 2;
    // What is confirmed, or answered, together.
    static constexpr Bytes together = backend::max_push;
    static constexpr std::size_t most_confirms = 64;
    static constexpr std::size_t most_lists = 4096;  // of places, of scatters that have not come

    // Something that this end waits for.
    struct Request {
        backend::Flight* flight = nullptr;
        Told told{};  // where there is no flight
        bool pull = false;
        bool pass = false;
        bool waiting = false;  // its questions have not been asked yet
        std::shared_ptr<const Parts> parts;
        std::shared_ptr<Region> own{};  // their memory, where it is a GPU's
        int moving = 0;                 // slots between it and the link
        Bytes left = 0;                 // neither arrived nor failed
        Bytes landing = 0;              // of these, on their way into memory here
        Bytes leaving = 0;              // of a push: not given to the system yet, from memory here
        bool starting = false;          // push() is still at it
        bool small = false;
        Ranges done{};
        std::optional<Error> error{};  // the first

        // What has to be asked for, or sent, over the next link. What has failed may still wait for push(), or for a slot.
        std::vector<Range> missing() const {
            return waiting || error ? std::vector<Range>() : done.missing(parts->size());
        }
        // No bytes leave for it from here.
        bool asks() const { return pull || pass; }
        bool over() const { return left == 0 && leaving == 0 && moving == 0 && !starting; }
        void end() const {
            const Result<void> result = error ? Result<void>(*error) : Result<void>();
            flight != nullptr ? flight->end(result) : told(result);
        }
    };
    // A link, and which one it is: what an older one tells late does not count.
    struct Line {
        std::shared_ptr<backend::Link> link;
        unsigned epoch = 0;
        bool scatters = false;
        Bytes direct_above = backend::Link::never;
        std::string_view engine{};
        // So many bytes of the region need no slot.
        bool is_direct(const Region& region, Bytes bytes) const {
            return bytes > direct_above &&
                   std::any_of(region.reached.begin(), region.reached.end(),
                               [&](const Region::Reached& one) { return one.engine == engine; });
        }
    };
    static Line line_of(std::shared_ptr<backend::Link> link, unsigned epoch) {
        const bool scatters = link->scatters();
        const Bytes direct_above = link->direct_above();
        const std::string_view engine = link->engine();
        return {std::move(link), epoch, scatters, direct_above, engine};
    }
    // What is to be sent once more, or asked for.
    struct Gap {
        std::uint64_t request = 0;
        Request what;  // without its end
        Range range;
    };
    // A pull or pass of the other end, or a push of this one out of memory of a GPU: what is still to be sent.
    struct Fetch {
        std::shared_ptr<Region> region;
        std::uint64_t request = 0;
        Bytes at = 0;                  // of the request: where the next push begins
        std::shared_ptr<Region> to{};  // of a third machine; null: to who asks
        std::uint64_t into = 0;        // of the other end, for a push of this one's request
        std::vector<backend::RegionPart>
            places{};                     // of the region; of a part that is sent: what goes together
        std::vector<Bytes> to_offsets{};  // where each goes in `to`, or `into`; else empty
        std::size_t next = 0;             // the first place that is left
        std::uint8_t to_gpu = 0;          // as the frames tell it
        Bytes size = 0;                   // of all that are left

        bool leads_on() const { return to || into != 0; }
        bool by_slot(const Line& line, Bytes bytes) const {
            return region->address == nullptr && (to || !line.is_direct(*region, bytes));
        }
        bool is_with(const Fetch& other) const {
            return request == other.request && (into != 0) == (other.into != 0);
        }
    };

    // Of several rings it is not known who waits for which.
    backend::Link::Resume whom_to_resume() const {
        return several_rings_.load(std::memory_order_relaxed) ? backend::Link::Resume::all
                                                              : backend::Link::Resume::one;
    }
    // Answers the request's number, and over which link it goes: null, where it waits for one.
    Result<std::pair<std::uint64_t, Line>> begin(Request request);
    static Request request_of(std::vector<Part> parts, std::shared_ptr<Region> own = {}) {
        Request request;
        request.parts = std::make_shared<const Parts>(std::move(parts));
        request.own = std::move(own);
        return request;
    }
    // With the mutex held: no more is asked for than the other end bears.
    bool has_room_for(const Request& request) const {
        return questions_ == 0 || questions_ + request.parts->count() <= most_questions;
    }
    Result<std::optional<Request>> begin_push(const Request& request);
    void send_small(const Line& line, std::uint64_t number, const Request& request, Range range);
    void send_push(const Line& line, std::uint64_t number, const Request& request, Range range);
    void queue_own(const Line& line, std::uint64_t number, const Request& request, Range range);
    static void add_places(Bundle& bundle, std::uint64_t request, const std::vector<Part>& parts,
                           backend::Frame::Kind kind);
    void send_question(const Line& line, std::uint64_t number, const Request& request, Range range) const;
    Result<void> ask(const Request& request);
    // Those that wait, where there is room again.
    void ask_waiting();
    bool others_are_on_their_way() const { return small_.load(std::memory_order_relaxed) > few_requests; }
    Error not_asked_for() const;
    // With the mutex held: takes one that is over off the list.
    Request take(std::map<std::uint64_t, Request>::iterator found);
    using Found = std::map<std::uint64_t, Request>::iterator;
    using Lock = std::unique_lock<std::mutex>;
    // Those bytes of a request are where they belong. An error where they cannot be its own. Lets go of the lock, as the
    // next two.
    Result<void> came(Lock lock, Found found, bool answer, Bytes at, Bytes bytes);
    // So many have failed.
    Result<void> failed(Lock lock, Found found, Bytes bytes, const Error& error);
    void end_if_over(Lock lock, Found found);
    // That many bytes of a push have been sent. Answers the request where it is over with that.
    std::optional<Request> let_go(std::uint64_t request, Bytes bytes, unsigned epoch);
    std::optional<Request> started(std::uint64_t request);
    Result<backend::Landing> landing_of(const backend::Frame& frame);
    Result<void> act_on(const backend::Frame& frame, backend::Landing landing);
    // An error that the other end is to blame for ends the session, whatever links there may be.
    template <typename Answer>
    Answer judged(Answer answer);
    void wait_for_link();
    void end_all(const Error& why);
    // Pieces between slots and what lies behind, as settle() counts them; `own`: the request of this end whose memory that is,
    // which is not over before.
    void moving(int more, std::uint64_t own = 0);
    // With the mutex held.
    Result<std::shared_ptr<Region>> find_region(const backend::Frame& frame, bool write) const;
    Result<std::shared_ptr<Region>> region_of(const backend::Frame& frame, bool write) const {
        std::lock_guard lock(mutex_);
        return find_region(frame, write);
    }
    // With the mutex held: the region of a third machine that the frame names.
    Result<std::shared_ptr<Region>> find_target(const backend::Frame& frame) const;
    Result<backend::Landing> landing_of_answer(const backend::Frame& frame);
    // What came into memory of a GPU, or into a slot of it.
    Result<void> answered(const backend::Frame& frame, const backend::Landing& landing);
    Result<void> landed(const backend::Frame& frame, unsigned epoch, const Result<void>& there);
    Result<backend::Landing> landing_of_scatter(const backend::Frame& frame);
    // Where the region's pace has them wait, what has come is landed, and what was asked for is sent, later.
    bool may_move(const Region& region, Pace::Direction direction, Bytes bytes);
    static backend::Landing in_slot(const Region& region, Bytes bytes);
    // With the mutex held: the places that were told for a frame. An error where they are not its own.
    Result<std::vector<backend::RegionPart>> take_places(const backend::Frame& frame);
    Result<void> told_places(const backend::Frame& frame, const backend::Landing& landing);
    Result<void> pushed(const backend::Frame& frame, const backend::Landing& landing);
    Result<void> give(const backend::Frame& frame);
    // With the mutex held. True where more of its kind may be coming, and are worth waiting for.
    Result<bool> add_fetch(Fetch fetch);
    void pump_soon(bool wait);
    void pump();
    void send_fetches();
    std::optional<Fetch> next_fetch(std::shared_ptr<Slots::Slot>& slot, Line& line);
    // With the mutex held: the next place of the first fetch goes over to `part`, or as much of it as one push holds.
    void cut_fetch(Fetch& part);
    // With the mutex held: whether that place can go with it. Their answer is one frame then, or one request to a third machine.
    bool goes_with(const Fetch& part);
    void fail_fetch(const Fetch& part, const Error& why);
    void fail_own(std::uint64_t request, Bytes bytes, const Error& why);
    void send_slot(const Fetch& part, const std::shared_ptr<Slots::Slot>& slot);
    // A push of this end's: out of the slot, or, without one, out of memory of the GPU.
    void send_own(const Line& line, const Fetch& part, const std::shared_ptr<Slots::Slot>& slot);
    // Small pushes, and answers from memory, that can go together.
    class Scattering;
    class Answers;
    // `slot`: where the bytes are; null: in the region.
    void pass_on(const Fetch& part, unsigned char* slot, std::function<void()> sent);
    void memory_sent(Bytes bytes, unsigned epoch);
    Line line() const {
        std::lock_guard lock(mutex_);
        return line_;
    }
    void confirm(const backend::Frame& push);
    // With the others that have come at the same time; called with the mutex held. True where it is time for them to go.
    bool confirm_soon(const backend::Frame& push);
    void send_confirms();
    void refuse(std::uint64_t request, Bytes bytes, const Error& error);
    Result<void> fault(const backend::Frame& frame, const backend::Landing& landing);

    const std::string peer_;
    std::atomic<unsigned> pumps_{0};  // calls of pump() that have not been seen to
    std::atomic<bool> several_rings_{false};
    std::atomic<bool> asked_{false};  // small pulls have come, and nobody has pumped since
    std::atomic<bool> confirms_wait_{false};
    std::atomic<int> small_{0};  // requests
    std::atomic<Bytes> received_{0};
    std::atomic<Bytes> sent_{0};
    std::atomic<unsigned> renewed_{0};

    mutable std::mutex mutex_;  // guards what follows
    mutable std::condition_variable settled_;
    Line line_;
    bool waits_for_link_ = false;  // until replay()
    bool link_ended_ = false;
    bool outlives_links_ = false;
    std::function<void(const Error&)> lost_;
    int moving_ = 0;
    std::uint64_t next_request_ = 1;
    std::map<std::uint64_t, Request> requests_;
    std::size_t questions_ = 0;          // of requests, that have been asked
    std::deque<std::uint64_t> waiting_;  // requests whose questions have not
    std::vector<backend::Frame> confirms_;
    std::map<std::pair<std::uint64_t, Bytes>, std::vector<backend::RegionPart>>
        places_;  // by request and place in it
    std::uint64_t next_region_ = 1;
    std::map<std::uint64_t, std::shared_ptr<Region>> regions_;
    std::deque<Fetch> fetches_;
    std::size_t fetch_places_ = 0;     // that are left of all of them
    std::set<const Slots*> rings_in_;  // that regions were granted with
    Bytes on_the_way_ = 0;             // of memory that is sent as it is
    std::optional<Error> end_;
};

}  // namespace sidestep::wire
