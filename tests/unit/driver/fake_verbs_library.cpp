// A libibverbs.so with these cards: "takes0" would register a real dma-buf, "never0" does not know how to,
// "old0" runs on a kernel that does not, "odd0" fails otherwise, "shut0" does not open, "poor0" gives no
// protection domain, "generous0" registers anything. Built without ibv_reg_dmabuf_mr where FAKE_VERBS_OLD is
// defined, as rdma-core 33 was, and without a required function where FAKE_VERBS_BROKEN is. The environment
// variable FAKE_VERBS_LIST holds the errno with which ibv_get_device_list fails.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#define FAKE extern "C" __attribute__((visibility("default")))

namespace {

struct Card {
    const char* name;
    int open_error;
    int domain_error;
    int register_error;  // 0: a registration that succeeds
};

Card cards[] = {{"takes0", 0, 0, EBADF}, {"never0", 0, 0, EOPNOTSUPP}, {"old0", 0, 0, EPROTONOSUPPORT},
                {"odd0", 0, 0, EINVAL},  {"shut0", EACCES, 0, 0},      {"poor0", 0, ENOMEM, 0},
                {"generous0", 0, 0, 0}};
constexpr int card_count = sizeof cards / sizeof cards[0];

// What is held: lists, contexts, domains and registrations that were not given back.
int held = 0;
// Calls in an order in which the real library would crash.
int misuse = 0;
bool list_is_out = false;

}  // namespace

FAKE int fake_verbs_held() {
    return held;
}

FAKE int fake_verbs_misuse() {
    return misuse;
}

FAKE Card** ibv_get_device_list(int* count) {
    if (const char* refusal = std::getenv("FAKE_VERBS_LIST")) {
        errno = std::atoi(refusal);
        return nullptr;
    }
    auto* list = static_cast<Card**>(std::calloc(card_count + 1, sizeof(Card*)));
    for (int i = 0; i < card_count; ++i) list[i] = &cards[i];
    if (count != nullptr) *count = card_count;
    ++held;
    list_is_out = true;
    return list;
}

FAKE void ibv_free_device_list(Card** list) {
    std::free(list);
    --held;
    list_is_out = false;
}

FAKE const char* ibv_get_device_name(Card* card) {
    return card->name;
}

FAKE Card* ibv_open_device(Card* card) {
    // Cards have to be opened before the list is given back.
    if (!list_is_out) ++misuse;
    if (card->open_error != 0) {
        errno = card->open_error;
        return nullptr;
    }
    ++held;
    return card;
}

FAKE int ibv_close_device(Card*) {
    --held;
    return 0;
}

#ifndef FAKE_VERBS_BROKEN
FAKE Card* ibv_alloc_pd(Card* context) {
    if (context->domain_error != 0) {
        errno = context->domain_error;
        return nullptr;
    }
    ++held;
    return context;
}
#endif

FAKE int ibv_dealloc_pd(Card*) {
    --held;
    return 0;
}

#ifndef FAKE_VERBS_OLD
FAKE Card* ibv_reg_dmabuf_mr(Card* domain, std::uint64_t offset, std::size_t length, std::uint64_t address,
                             int fd, int access) {
    if (offset != 0 || length != 0 || address != 0 || fd != -1 || access != 0) ++misuse;
    if (domain->register_error != 0) {
        errno = domain->register_error;
        return nullptr;
    }
    ++held;
    return domain;
}
#endif

FAKE int ibv_dereg_mr(Card*) {
    --held;
    return 0;
}
