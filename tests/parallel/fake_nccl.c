/* A stand-in for NCCL with its interface: it checks what it is given, and sums as if every rank gave the same. */
#include <stddef.h>

typedef struct { char internal[128]; } ncclUniqueId;
static struct { int ranks, rank; } communicator;

int ncclGetUniqueId(ncclUniqueId *id) {
    for (int i = 0; i < 128; i++) id->internal[i] = (char)(i * 7); /* zeros and bytes over 127 among them */
    return 0;
}

int ncclCommInitRank(void **handle, int ranks, ncclUniqueId id, int rank) {
    for (int i = 0; i < 128; i++)
        if (id.internal[i] != (char)(i * 7)) return 4;
    communicator.ranks = ranks;
    communicator.rank = rank;
    *handle = &communicator;
    return 0;
}

int ncclAllReduce(const void *source, void *target, size_t count, int type, int op, void *handle, void *stream) {
    if (handle != &communicator || type != 7 || op != 0 || stream != (void *)0x7fff12345678) return 4;
    for (size_t i = 0; i < count; i++) ((float *)target)[i] = communicator.ranks * ((const float *)source)[i];
    return 0;
}

int ncclCommDestroy(void *handle) { return handle == &communicator ? 0 : 4; }
const char *ncclGetErrorString(int result) { return result == 4 ? "invalid argument" : "no error"; }
const char *ncclGetLastError(void *handle) { return handle == &communicator ? "of the communicator" : ""; }
