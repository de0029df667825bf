// Package indextest is the one conformance suite of index engines: it runs
// both halves of an engine against a naive model, over the in-process fabric
// and under its adversary.
//
// An engine enrols with [RunPoint], or [RunOrdered] if it has scans. Each
// check is also a function that returns an error, so that an engine's own
// tests can plant a bug in a decorated half and demand that it is caught.
//
// Runs are seeded; the seed is logged, and accepted back in DRTMX_SEED.
package indextest
