// Package finestore is the data server's half of FineStore's index: models over arrays that keys
// which come later do not change, because they go to small bins between the keys of the array.
//
//	models ─▶ array   key  key  key  key …      trained keys, ascending, with the rows' addresses
//	                ▲    ▲    ▲    ▲    ▲
//	              bin   ─   root   ─   bin       of the keys in the interval
//	                        ╱  ╲
//	                      bin  bin
//
// An insert touches one bin, at any size of the index, and the models stay right. When the bins of
// an array have many rows, the array is made anew of its keys and theirs, in its place, and divided
// if they are too many: a merge. Only then do models lack something. docs/finestore.md has the
// protocol and the proofs, and what is different in the paper.
//
// Rows have their own blocks, which no merge moves. Readers are those of package
// index/learned/read, for the layouts of index/learned/leaf (Frozen, Bin).
package finestore
