// Member::join: seat, rendezvous, arenas.
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "collective/ending.hpp"
#include "collective/member.hpp"
#include "collective/shared_gpu.hpp"
#include "driver/random.hpp"

namespace sidestep::collective {
namespace {

using Time = driver::LocalSocket::Time;

// Another number in every process: a forked child has its parent's, but another process id.
const std::array<std::uint64_t, 2>& program_number() {
    static const std::array<std::uint64_t, 2> number{driver::random_number(), driver::random_number()};
    return number;
}

Result<void> check_request(const JoinRequest& request) {
    const Seating& seating = request.seating;
    const auto wrong = [](std::string message, std::string hint) {
        return Error{ErrorCode::invalid_argument, std::move(message), "group", std::move(hint)};
    };
    if (seating.ranks < 1 || seating.ranks > static_cast<int>(protocol::max_ranks))
        return wrong(fmt::format("a group has 1 to {} ranks, not {}", protocol::max_ranks, seating.ranks),
                     "");
    if (seating.rank < 0 || seating.rank >= seating.ranks)
        return wrong(fmt::format("a group of {} ranks has no rank {}", seating.ranks, seating.rank),
                     "ranks count from 0");
    if (!seating.place.is_gpu() || !seating.place.node().empty())
        return wrong(
            fmt::format("a rank sits on a GPU of this machine, not on {}", seating.place.to_string()), "");
    return {};
}

Result<std::unique_ptr<backend::Seat>> make_seat(const JoinRequest& request) {
    backend::SeatRequest wanted;
    wanted.rank = static_cast<unsigned>(request.seating.rank);
    wanted.ranks = static_cast<unsigned>(request.seating.ranks);
    wanted.place = request.seating.place;
    wanted.deadline_ns = static_cast<std::uint64_t>(request.options.timeout / std::chrono::nanoseconds(1));
    Error refused{
        ErrorCode::unsupported, "no backend here runs collectives", request.seating.place.to_string(), {}};
    for (backend::Backend* backend : request.registry.usable()) {
        backend::Seats* const seats = backend->seats();
        if (seats == nullptr) continue;
        auto seat = seats->seat(wanted);
        if (seat) ending::prepare_for(backend->name());
        if (seat || seat.error().code != ErrorCode::unsupported) return seat;
        refused = seat.error();
    }
    return refused;
}

// Joining of one rank, step by step.
class Joining {
public:
    explicit Joining(const JoinRequest& request)
        : request_(request),
          until_(join_deadline_of(request.options)),
          service_(std::make_unique<ServiceThread>(empty(request))),
          own_(&service_->own()) {}

    // All that can fail comes before the ranks tell each other that they are ready.
    Result<std::unique_ptr<ServiceThread>> join() {
        SIDESTEP_CHECK(meet());
        auto state = prepare();
        if (state) state = exchange_arenas();
        if (!state) {
            tell_all(state.error());
            return state.error();
        }
        Reachability::Facts facts{own_->rank, own_->ranks, 1u << own_->rank};
        for (unsigned rank = 0; rank < own_->ranks; ++rank)
            if (own_->contacts[rank] && own_->contacts[rank]->same_process) facts.same_process |= 1u << rank;
        own_->reachability = std::make_unique<Reachability>(request_.registry, *own_->seat, facts);
        own_->seat->ask([reachability = own_->reachability.get()](const void* address, Bytes bytes) {
            bool asked = false;  // the service thread comes by in any case
            const auto token = reachability->token(address, bytes, asked);
            return token ? *token : protocol::Token{};
        });
        return std::move(service_);
    }

    // Empty where every GPU reaches every other one's memory.
    const std::string& why_no_mesh() const { return why_no_mesh_; }
    Wire wire() const {
        if (!why_no_mesh_.empty()) return Wire::host_memory;
        return over_pcie_ || heard_pcie_ ? Wire::pcie : Wire::nvlink;
    }
    const std::string& figures() const { return figures_; }
    int multiprocessors() const { return static_cast<int>(multiprocessors_); }
    int max_blocks() const {
        return static_cast<int>(std::min<std::uint64_t>(max_blocks_, protocol::max_blocks));
    }
    // Empty where every rank has its own GPU, or shares one only with ranks of its own process.
    const std::string& shared_gpu_of_ranks() const { return shared_gpu_; }

private:
    static std::unique_ptr<RankResources> empty(const JoinRequest& request) {
        auto own = std::make_unique<RankResources>();
        own->rank = static_cast<unsigned>(request.seating.rank);
        own->ranks = static_cast<unsigned>(request.seating.ranks);
        own->timeout = request.options.timeout;
        own->contacts.resize(own->ranks);
        return own;
    }

    Hello hello() const {
        Hello hello;
        hello.rank = own_->rank;
        hello.ranks = own_->ranks;
        hello.process = static_cast<std::uint32_t>(::getpid());
        hello.program = program_number();
        hello.place = request_.seating.place.to_string();
        if (hello.rank == 0) hello.figures = request_.figures;
        return hello;
    }

    Result<void> meet() {
        SIDESTEP_TRY(const peer::Folder folder, peer::Folder::open(request_.peer_folder, true));
        Hello mine = hello();
        own_->name = name_of(mine.rank, mine.process, mine.place);
        SIDESTEP_TRY(Rendezvous rendezvous, Rendezvous::open(folder, request_.seating.id, mine, until_));
        auto seat = make_seat(request_);
        if (!seat) return cannot_take_part(rendezvous, mine, seat.error());
        own_->seat = std::move(*seat);
        mine.gpu = own_->seat->gpu_id();
        board_path_ = group_path(folder, request_.seating.id) + "board";
        if (mine.rank == 0) {
            auto board = Board::create(board_path_, mine.ranks, request_.seating.id.to_string(),
                                       request_.options.name);
            if (!board) return cannot_take_part(rendezvous, mine, board.error());
            own_->board = std::move(*board);
            own_->board->join(0, mine.place);
        }
        const int descriptor = own_->board ? own_->board->descriptor() : -1;
        SIDESTEP_TRY(own_->contacts,
                     rendezvous.meet(mine, descriptor, until_, request_.stop, request_.coming));
        figures_ = mine.rank == 0 ? mine.figures : own_->contacts[0]->hello.figures;
        shared_gpu_ = find_shared_gpu(mine);
        return {};
    }

    // What this rank needs besides the others' arenas.
    Result<void> prepare() {
        if (own_->rank != 0) {
            Contact& first = *own_->contacts[0];
            auto board = Board::adopt(std::move(first.descriptor), board_path_, own_->ranks);
            if (!board) return of(first, "board", board.error());
            own_->board = std::move(*board);
            own_->board->join(own_->rank, request_.seating.place.to_string());
            // Before anybody is told that this rank is ready.
            const auto figures =
                figures_.empty() ? Result<Figures>(Figures()) : parse_figures(figures_, Wire::nvlink);
            if (!figures) return of(first, "figures", figures.error());
        }
        return service_->prepare();
    }

    // A failure of this rank alone bears its name; what others hear of it they tell as they heard it.
    void tell_all(const Error& error) {
        bool own = error.code != ErrorCode::timed_out && error.code != ErrorCode::cancelled;
        for (const auto& contact : own_->contacts) own = own && !(contact && contact->failed);
        const Error told = own ? failure_of(own_->name, error.to_string()) : error;
        const std::string bytes =
            to_bytes(Message{.word = Word::failed, .code = told.code, .text = told.message});
        for (const auto& contact : own_->contacts)
            if (contact) (void)contact->socket.send(bytes);
    }

    std::string find_shared_gpu(const Hello& mine) const {
        std::vector<const Hello*> ranks;
        for (const auto& contact : own_->contacts) ranks.push_back(contact ? &contact->hello : &mine);
        return shared_gpu(ranks);
    }

    Error cannot_take_part(Rendezvous& rendezvous, const Hello& mine, const Error& why) const {
        rendezvous.refuse(mine, why, until_, request_.stop);
        return why;
    }

    // GPUs that do not reach each other's memory all reach the host's: if any pair does not, every arena
    // moves there.
    Result<void> exchange_arenas() {
        own_->imports = std::make_unique<Imports>(*own_->seat);
        own_->seat->meet(own_->board->file().copies);
        SIDESTEP_CHECK(swap_arenas(nullptr));
        if (why_no_mesh_.empty()) return {};
        SIDESTEP_TRY(auto exported, own_->seat->move_arena_to_host());
        in_host_memory_ = true;
        return swap_arenas(std::move(exported));
    }

    // `exported`: how other processes open this rank's arena; null: as any memory.
    Result<void> swap_arenas(std::shared_ptr<const backend::Exported> exported) {
        const Buffer& arena = own_->seat->arena();
        SIDESTEP_CHECK(own_->seat->reach(own_->rank, 0, backend::bytes_of(arena)));
        Lent lent;
        lent.whole = arena;
        lent.exported = std::move(exported);
        for (const auto& contact : own_->contacts)
            if (contact && !contact->same_process && !lent.exported) {
                SIDESTEP_TRY(lent.exported, export_memory(request_.registry, arena));
            }
        for (auto& contact : own_->contacts) {
            if (!contact) continue;
            SIDESTEP_TRY(std::string offer, lent.offer(contact->same_process));
            SIDESTEP_CHECK(contact->send(to_bytes(Message{.word = Word::arena, .blob = std::move(offer)}),
                                         lent.descriptor(contact->same_process)));
        }
        for (unsigned rank = 0; rank < own_->ranks; ++rank)
            if (own_->contacts[rank]) SIDESTEP_CHECK(take_arena(rank));
        if (request_.options.policy == GroupPolicy::zero_sm && why_no_mesh_.empty())
            SIDESTEP_CHECK(own_->seat->prepare_copies());
        return agree();
    }

    // Every rank announces what it found, so that all come to the same answer.
    Result<void> agree() {
        for (const auto& contact : own_->contacts)
            if (contact && !own_->seat->over_nvlink(place_of(*contact))) over_pcie_ = true;
        for (auto& contact : own_->contacts)
            if (contact)
                SIDESTEP_CHECK(contact->send(to_bytes(Message{.word = Word::ready,
                                                              .slot = own_multiprocessors(),
                                                              .number = own_number(),
                                                              .text = why_no_mesh_})));
        multiprocessors_ = own_multiprocessors();
        max_blocks_ = own_number() >> 2;
        for (auto& contact : own_->contacts) {
            if (!contact) continue;
            SIDESTEP_TRY(const Message ready, expect(contact->hello.rank, Word::ready));
            heard_pcie_ |= (ready.number & 1) != 0;
            if (((ready.number ^ own_number()) & 2) != 0)
                return Error{ErrorCode::mismatch,
                             fmt::format("{} and {} have different policies", own_->name, contact->who()),
                             "group", "give all ranks the same GroupOptions::policy"};
            if (const std::uint64_t most = ready.number >> 2; most != 0)
                max_blocks_ = max_blocks_ == 0 ? most : std::min(max_blocks_, most);
            if (ready.slot != 0 && (multiprocessors_ == 0 || ready.slot < multiprocessors_))
                multiprocessors_ = ready.slot;
            // The lowest rank's reason, on all ranks alike.
            if (!ready.text.empty() && (why_no_mesh_.empty() || contact->hello.rank < reason_of_))
                std::tie(why_no_mesh_, reason_of_) = std::pair(ready.text, contact->hello.rank);
        }
        return {};
    }

    std::uint64_t own_number() const {
        return static_cast<std::uint64_t>(request_.options.max_blocks) << 2 |
               (request_.options.policy == GroupPolicy::zero_sm ? 2u : 0u) | (over_pcie_ ? 1u : 0u);
    }

    // Ranks of one process on one GPU run there at a time; those of several processes take turns.
    std::uint32_t own_multiprocessors() const {
        std::uint32_t sharing = 1;
        for (const auto& contact : own_->contacts)
            if (contact && contact->same_process &&
                contact->hello.place == request_.seating.place.to_string())
                ++sharing;
        const std::uint32_t all = own_->seat->multiprocessors();
        return all == 0 ? 0 : std::max(all / sharing, 2u);
    }

    // What another rank has sent is of no use, as it is or to this one.
    static Error of(const Contact& contact, const char* what, Error error) {
        error.message = fmt::format("the {} of {}: {}", what, contact.who(), error.message);
        return error;
    }

    static Place place_of(const Contact& contact) {
        const auto place = Place::parse(contact.hello.place);
        return place ? *place : Place::host();
    }

    Result<Message> expect(unsigned rank, Word word) {
        SIDESTEP_TRY(received_, next_message(own_->contacts, rank, until_, request_.stop, own_->name));
        SIDESTEP_TRY(Message message, parse_message(received_.bytes));
        if (message.word != word)
            return Error{ErrorCode::io_error,
                         fmt::format("{} said something unexpected", own_->contacts[rank]->who()),
                         "group",
                         {}};
        return message;
    }

    Result<void> take_arena(unsigned rank) {
        Contact& contact = *own_->contacts[rank];
        SIDESTEP_TRY(const Message message, expect(rank, Word::arena));
        const int descriptor = received_.descriptor ? received_.descriptor.get() : -1;
        const auto added = own_->imports->add(rank, 0, message.blob, descriptor, contact.same_process);
        if (added) return {};
        if (added.error().code != ErrorCode::unsupported || in_host_memory_)
            return of(contact, "arena", added.error());
        if (why_no_mesh_.empty())
            why_no_mesh_ =
                fmt::format("{} and {} have no peer access ({})", request_.seating.place.to_string(),
                            contact.hello.place, added.error().message);
        reason_of_ = own_->rank;
        return own_->seat->reach(rank, 0, backend::bytes_of(own_->seat->arena()));
    }

    const JoinRequest& request_;
    const Time until_;
    std::unique_ptr<ServiceThread> service_;
    RankResources* const own_;  // of the service thread
    std::string board_path_;
    driver::LocalMessage received_;
    std::string why_no_mesh_;
    std::uint32_t reason_of_ = 0;
    bool in_host_memory_ = false;
    std::uint32_t multiprocessors_ = 0;  // see GroupFacts, as the next one
    std::uint64_t max_blocks_ = 0;
    bool over_pcie_ = false;   // between this rank's GPU and another one
    bool heard_pcie_ = false;  // the same, of others
    std::string figures_;
    std::string shared_gpu_;
};

}  // namespace

Result<std::unique_ptr<Member>> Member::join(const JoinRequest& request) {
    SIDESTEP_CHECK(check_request(request));
    Joining joining(request);
    SIDESTEP_TRY(std::unique_ptr<ServiceThread> service, joining.join());
    GroupFacts facts;
    facts.ranks = request.seating.ranks;
    facts.full_mesh = joining.why_no_mesh().empty();
    facts.why_not = joining.why_no_mesh();
    facts.shared_gpu = joining.shared_gpu_of_ranks();
    facts.emulated = request.emulated;
    facts.wire = joining.wire();
    facts.multiprocessors = joining.multiprocessors();
    facts.max_blocks = joining.max_blocks();
    facts.figures = built_in_figures(facts.wire);
    if (!joining.figures().empty()) {
        SIDESTEP_TRY(facts.figures, parse_figures(joining.figures(), facts.wire));
    }
    if (facts.max_blocks > 0) facts.figures.max_blocks = std::min(facts.figures.max_blocks, facts.max_blocks);
    if (!facts.full_mesh && request.seating.rank == 0)
        base::log(base::LogLevel::info, fmt::format("group {}: {}: the arenas lie in host memory",
                                                    request.seating.id.to_string(), facts.why_not));
    if (!facts.shared_gpu.empty() && request.seating.rank == 0)
        base::log(base::LogLevel::warn,
                  fmt::format("group {}: {}", request.seating.id.to_string(), facts.shared_gpu));
    service->start();
    return std::unique_ptr<Member>(
        new Member(request.seating, request.options, std::move(facts), std::move(service)));
}

}  // namespace sidestep::collective
