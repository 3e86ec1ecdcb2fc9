/* The same from C: a string goes to a GPU and comes back. Runs anywhere: the GPUs are emulated unless the
 * first argument names another machine ("live" is this one). */
#include <sidestep/sidestep.h>
#include <stdio.h>
#include <string.h>

static int fail(void) {
    const sidestep_error* error = sidestep_last_error();
    fprintf(stderr, "%s: %s. %s\n", sidestep_status_text(error->code), error->message, error->hint);
    return 1;
}

int main(int argc, char** argv) {
    char text[64] = "bytes that went around the CPU";
    char back[64] = "";
    sidestep_context* context = NULL;
    sidestep_allocation* memory = NULL;
    sidestep_receipt* receipt = NULL;
    char* explanation = NULL;

    if (sidestep_open(argc > 1 ? argv[1] : "dgx-h100", &context)) return fail();
    if (sidestep_allocate(context, "gpu:0", sizeof(text), &memory)) return fail();

    const sidestep_buffer source = {"host", text, 0, sizeof(text)};
    const sidestep_buffer gpu = sidestep_allocation_buffer(memory);
    const sidestep_buffer target = {"host", back, 0, sizeof(back)};
    if (sidestep_copy(context, &source, &gpu, NULL, NULL)) return fail();
    if (sidestep_copy(context, &gpu, &target, NULL, &receipt)) return fail();
    if (sidestep_explain(receipt, SIDESTEP_TEXT, &explanation)) return fail();
    printf("%s\n%s", back, explanation);

    sidestep_free(explanation);
    sidestep_receipt_free(receipt);
    sidestep_release(memory);
    sidestep_close(context);
    return strcmp(text, back) == 0 ? 0 : 1;
}
