// Package mem is the only home of unsafe: growable regions of registered
// memory, and the aligned atomic words in them.
//
// A [Region] is a span of bytes addressed by offset, never by pointer, so that
// an offset means the same in every process that maps it. It grows by whole
// segments and never shrinks or moves while it lives; offset 0 lies in a
// reserved first line, so that zero can mean nil.
//
// All access to shared bytes goes through a [Span]: single 8-byte words are
// loaded and stored atomically, and bulk copies move whole words in ascending
// order, one word at a time. A plain copy of such memory would be a data race
// and may tear inside a word.
//
// The race detector does not see mapped pages. Under the tags race and
// invariants together, regions that are not shared with another process
// therefore live on the Go heap, and bulk copies are word-wise sync/atomic calls.
// Under race alone the detector sees what the engine orders for the program
// around it: [Release] and [Acquire].
package mem
