// Package model is the XModel of a learned cache over an ordered index of uint64
// keys: a [Router] over [SubModel]s, each with its own translation table (TT) from
// logical leaf numbers to actual leaf numbers (ALN). Given a key it returns the leaf
// to READ first, and bounds in leaves that are certain as long as the tree has not
// changed since training.
//
// A model is a hint. The fence keys of the leaf that was read prove an answer;
// a stale, wrong or corrupt model costs rounds, never correctness. So every
// decoder rejects what it cannot trust, and every prediction is clamped to
// leaves that exist.
//
// # How a key becomes a leaf
//
//	key ── Router ──► sub-model ── line(s) ──► position ── refinements ──► position
//	    ── corrections ──► logical leaf ── TT ──► ALN
//
// A sub-model covers a contiguous key interval and its leaves 0 … L-1. It is trained
// on the low fences of leaves 1 … L-1 only: the leaf of a key is the number of those
// fences at or below it, so keys below the first fence or above the last one need no
// model. A line maps a key to a position, a fixed-point leaf number; it is evaluated
// in integers on the distance from the line's own first key, so that keys of any
// magnitude are exact (float64 cannot tell neighbours above 2^53 apart), and it never
// falls as the key rises, so that the two edges of a leaf bound every key between
// them, absent ones too.
//
// A line over hundreds of leaves of random keys is wrong by a leaf or two. The TT
// therefore keeps, beside each ALN, a correction: a few bits that say at which
// position the leaf truly begins (a quantised fence). With corrections the first leaf
// chosen is nearly always the right one. Only for a key near a fence do the bounds
// widen to two leaves.
//
// Where keys cluster, positions from one line per cluster are off by dozens of
// leaves. Instead of more lines, the TT then begins with refinements, second-level
// lines of one word each from rough positions to precise ones, and several clusters
// share a sub-model ([Join]). Without the TT, the predictions of such a sub-model are
// rough: a client that holds only models READs its whole TT.
//
// # What it is worth
//
// 10 million keys, leaves of 22 keys on average, numbered in key order, 512 leaves
// per sub-model, PLR. Sizes are relative to 24 bytes of inner nodes per leaf.
// Regenerate with
//
//	go test -run xxx -bench Model ./index/learned/model
//
//	             first leaf right   models   TT      right without corrections
//	uniform      99.3 %             0.59 %   4.7 %   23 %
//	lognormal    99.3 %             0.62 %   4.7 %   23 %
//	clustered    98.6 %             0.38 %   4.8 %    1 %
//	TPC-C        100.0 %            0.49 %   4.7 %   23 %
//
// RMI is as good where one line fits, and poor where keys cluster (87 %). The TT
// sizes assume leaves whose numbers are near those of their neighbours, or in few
// extents. If all leaves were split in random order, and the new leaves come from
// extents of 8, one open extent per inner node, the TT takes 7.3 to 7.5 % of the
// inner nodes: see BenchmarkPredict of index/learned/read.
//
// # Sources
//
// Router, sub-models and TT follow XStore (Wei et al., "Fast RDMA-based
// Ordered Key-Value Store using Remote Learned Cache", §5.1, Fig. 6 and 7);
// [RMI] is its linear regression. [PLR] is the bounded-error piecewise linear
// family of ROLEX ("learned indexes for disaggregated memory", §3.2), fitted
// with the optimal streaming algorithm (O'Rourke 1981; Xie et al., VLDB J.
// 2014). Fence corrections are this package's own.
package model
