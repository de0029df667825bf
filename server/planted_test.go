//go:build planted

package server

import (
	"testing"

	"drtmx/internal/planted"
	"drtmx/internal/planted/plantedtest"
)

// TestPlanted: each of these bugs makes the named test fail for the reason given.
func TestPlanted(t *testing.T) {
	const (
		random = "TestHistories/no faults"
		// anomaly is the first line of the checker's report, or an error that an
		// attempt which stood got and no state justifies.
		anomaly = `(?mi)contradicts what was read|^ *(lost|phantom|fractured|read skew|write skew|stale|real|g[012]|g-|internal|duplicate|incompatible|unwritten|scan order)[^\n]*T[0-9][^\n]*`
	)
	plantedtest.Run(t, []plantedtest.Case{
		{Bug: planted.SkipViewValidation, Test: "TestChangedReadsDoNotStand", Want: "View: .*: the first attempt stood"},
		{Bug: planted.SkipSingleValidation, Test: "TestChangedReadsDoNotStand", Want: "View: .*: the first attempt stood"},
		{Bug: planted.SkipCommitValidation, Test: random, Want: anomaly},
		{Bug: planted.SkipGapValidation, Test: "TestChangedReadsDoNotStand", Want: "Update .*: absent row inserted: the first attempt stood"},
		{Bug: planted.SkipScanRows, Test: "TestChangedReadsDoNotStand", Want: "scan, Update .*: row changed: the first attempt stood"},
		{Bug: planted.MaskLockBit, Test: "TestLockedIsChanged", Want: "row locked by another transaction"},
		{Bug: planted.UnlockEarly, Test: random, Want: anomaly},
		{Bug: planted.KeepLocks, Test: "TestFailedCommitLeavesNoLock", Want: "after a failed commit: .*conflict"},
		{Bug: planted.NoSharedLocks, Test: "TestPreparedReadsStay", Want: "read by a prepared transaction, was written"},
		{Bug: planted.SharedLocksLast, Test: "TestPreparedReadsStay", Want: "read by a prepared transaction, was written"},
		{Bug: planted.LatePrepare, Test: "TestLatePrepareIsRefused", Want: "prepare .* is accepted"},
		{Bug: planted.ForgetOutcomes, Test: "TestRepeatedRequestsTakeEffectOnce", Want: "(?i)duplicate"},
		{Bug: planted.FirstRefusal, Test: "TestCoordinatorInEveryOrder", Want: "stands only if all that was read did"},
		{Bug: planted.DoomedAnswer, Test: random, Want: "row exists"},
		{Bug: planted.AbsenceByContents, Test: "TestSwapIsNeverSeenHalf", Want: "found neither of two keys"},
		{Bug: planted.KeepGapWord, Test: "TestChangedReadsDoNotStand", Want: "get of nothing, View: absent row inserted: the first attempt stood"},
		{Bug: planted.NoKeyCheck, Test: "TestStaleLocations", Want: "has the row of key|is found"},
		{Bug: planted.IgnoreTail, Test: "TestHistories/pauses within reads", Want: anomaly + "|row of key [0-9]+ says"},
		{Bug: planted.IgnoreChecksum, Test: "TestHistories/words in any order", Want: anomaly + "|row of key [0-9]+ says"},
		{Bug: planted.RepeatVersions, Test: "TestChangedReadsDoNotStand", Want: "row changed and changed back: the first attempt stood"},
		{Bug: planted.LateHandOver, Test: "TestLateHandOverIsRefused", Want: "called aborted is committed"},
		{Bug: planted.ForgetHandOver, Test: "TestHandedOver/answer lost", Want: "it was committed"},
		{Bug: planted.LostWakeup, Test: "TestParkedIsWoken", Want: "was not woken by the decision"},
		{Bug: planted.RunParkedTwice, Test: "TestParkedIsWoken", Want: "carried out twice"},
		{Bug: planted.RunParkedTwice, Test: random, Want: anomaly},
		{Bug: planted.IgnoreFence, Test: "TestFencedPartitionServesNoView", Want: "View .* succeeds"},
	})
}
