#include "rpc/limited_device.h"

#include <ggml-backend-impl.h>
#include <stdlib.h>

typedef struct limited {
    struct ggml_backend_device device; // first: functions of ggml get a pointer to it
    struct ggml_backend_buffer_type type;
    ggml_backend_dev_t real;
    size_t limit;
    size_t lent;
    void (*free_buffer)(ggml_backend_buffer_t buffer); // the real device's
    struct limited *next;
} limited;

// A buffer belongs to the real device's buffer type, which its kernels look at; what limits it is found by that.
static limited *all;

static size_t left(const limited *self) { return self->lent < self->limit ? self->limit - self->lent : 0; }

static ggml_backend_buffer_type_t real_type(ggml_backend_buffer_type_t type) {
    return ggml_backend_dev_buffer_type(((limited *)type->context)->real);
}

static const char *type_name(ggml_backend_buffer_type_t type) { return ggml_backend_buft_name(real_type(type)); }

static size_t type_alignment(ggml_backend_buffer_type_t type) {
    return ggml_backend_buft_get_alignment(real_type(type));
}

static size_t type_max_size(ggml_backend_buffer_type_t type) { return ggml_backend_buft_get_max_size(real_type(type)); }

static size_t type_alloc_size(ggml_backend_buffer_type_t type, const struct ggml_tensor *tensor) {
    return ggml_backend_buft_get_alloc_size(real_type(type), tensor);
}

static bool type_is_host(ggml_backend_buffer_type_t type) { return ggml_backend_buft_is_host(real_type(type)); }

static void free_buffer(ggml_backend_buffer_t buffer) {
    for (limited *found = all; found; found = found->next) {
        if (ggml_backend_dev_buffer_type(found->real) == buffer->buft) {
            found->lent -= buffer->size;
            found->free_buffer(buffer);
            return;
        }
    }
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    limited *self = type->context;
    if (size > left(self)) {
        return NULL;
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(real_type(type), size);
    if (!buffer) {
        return NULL;
    }
    if (buffer->iface.free_buffer == NULL) {
        return buffer; // nothing to count: ggml's buffers of 0 bytes
    }
    self->free_buffer = buffer->iface.free_buffer;
    self->lent += buffer->size;
    buffer->iface.free_buffer = free_buffer;
    return buffer;
}

static void device_memory(ggml_backend_dev_t device, size_t *free, size_t *total) {
    const limited *self = (const limited *)device;
    ggml_backend_dev_memory(self->real, free, total);
    *total = self->limit < *total ? self->limit : *total;
    *free = left(self) < *free ? left(self) : *free;
}

static void device_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
    ggml_backend_dev_get_props(((limited *)device)->real, props);
    device_memory(device, &props->memory_free, &props->memory_total);
}

static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t device) { return &((limited *)device)->type; }

static ggml_backend_t device_init(ggml_backend_dev_t device, const char *params) {
    ggml_backend_t backend = ggml_backend_dev_init(((limited *)device)->real, params);
    if (backend) {
        backend->device = device;
    }
    return backend;
}

ggml_backend_dev_t oe_limited_device(ggml_backend_dev_t device, size_t limit) {
    limited *self = calloc(1, sizeof *self);
    if (!self) {
        return NULL;
    }
    self->device = *device; // with its context, which its other functions look for
    self->device.iface.get_memory = device_memory;
    self->device.iface.get_props = device_props;
    self->device.iface.get_buffer_type = device_buffer_type;
    self->device.iface.init_backend = device_init;
    self->real = device;
    self->limit = limit;
    self->type.iface.get_name = type_name;
    self->type.iface.alloc_buffer = alloc_buffer;
    self->type.iface.get_alignment = type_alignment;
    self->type.iface.get_max_size = type_max_size;
    self->type.iface.get_alloc_size = type_alloc_size;
    self->type.iface.is_host = type_is_host;
    self->type.device = &self->device;
    self->type.context = self;
    self->next = all;
    all = self;
    return &self->device;
}
