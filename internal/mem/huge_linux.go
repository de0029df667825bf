package mem

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeBytes is the size of a huge page, and what mappings are aligned to: the
// kernel maps a huge page of a file as one only where the file's offset and
// the address agree modulo its size.
const hugeBytes = 2 << 20

// mapAligned maps n bytes at an address that is a multiple of hugeBytes.
func mapAligned(fd int, n uintptr, prot, flags int) (unsafe.Pointer, error) {
	if n < hugeBytes {
		return unix.MmapPtr(fd, 0, nil, n, prot, flags)
	}
	whole := n + hugeBytes
	p, err := unix.MmapPtr(-1, 0, nil, whole, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	before := -uintptr(p) & (hugeBytes - 1)
	at := unsafe.Add(p, before)
	if _, err := unix.MmapPtr(fd, 0, at, n, prot, flags|unix.MAP_FIXED); err != nil {
		_ = unix.MunmapPtr(p, whole)
		return nil, err
	}
	if before > 0 {
		_ = unix.MunmapPtr(p, before)
	}
	// MaxBytes need not be a multiple of a page.
	const page = 4096
	end := (n + page - 1) &^ (page - 1)
	if after := whole - before - end; after > 0 {
		_ = unix.MunmapPtr(unsafe.Add(at, end), after)
	}
	return at, nil
}

// grown asks for huge pages below a region that has just grown to size bytes.
// Rows are read at random all over a region, and with pages of 4 KiB most of
// them cost a walk of the page table next to the miss of the cache; in a
// virtual machine that walk is the dearer of the two. A region of one segment
// is left alone: it is small, and often stays so.
//
// The kernel may refuse (no memory in one piece, a kernel before 6.1), and
// then pages stay small.
func (r *Region) grown(size uint64) {
	seg := r.opts.SegmentBytes
	if seg < hugeBytes || size == seg {
		return
	}
	from := size - seg
	if from == seg {
		from = 0
	}
	if r.opts.Kind == Private {
		_ = unix.Madvise(unsafe.Slice((*byte)(unsafe.Add(r.base, from)), size-from), unix.MADV_HUGEPAGE)
		return
	}
	// In the background, for it takes some milliseconds for each huge page.
	go r.collapse(from, size)
}

// collapse replaces the pages of [from, to) of a memfd by huge ones, whatever
// is in them and whoever uses them. Unlike MADV_HUGEPAGE it does not depend on
// the machine's setting for shared memory, which is "never" nearly everywhere.
func (r *Region) collapse(from, to uint64) {
	r.collapsing.Lock()
	defer r.collapsing.Unlock()
	for off := from; off < to && !r.smallPages; off += hugeBytes {
		b := unsafe.Slice((*byte)(unsafe.Add(r.base, off)), hugeBytes)
		// Only what holds a page can be collapsed.
		err := unix.Madvise(b[:4096], unix.MADV_POPULATE_READ)
		if err == nil {
			err = unix.Madvise(b, unix.MADV_COLLAPSE)
		}
		// EAGAIN and EBUSY: somebody held a page just now.
		r.smallPages = err != nil && err != unix.EAGAIN && err != unix.EBUSY
	}
	runtime.KeepAlive(r)
}
