// Package planted makes the engine wrong on purpose, to show that its tests
// notice. A test suite proves something only if it fails for the bugs it is
// meant to find; each bug here was seen in released code of such systems, or is
// one step away from this one.
//
// Without the build tag planted, [Is] is constantly false and the compiler
// removes every bug. With it, the environment variable DRTMX_PLANTED names the
// one bug that a process has; package plantedtest runs a test in such a process
// and expects it to fail.
package planted

import "fmt"

// Bug is one way to be wrong.
type Bug int

// The bugs, with the place of each.
const (
	None Bug = iota
	// SkipViewValidation: a View returns what it read (package txn).
	SkipViewValidation
	// SkipSingleValidation: so does a View of a single row or range (txn).
	SkipSingleValidation
	// SkipCommitValidation: a commit does not look at its proofs (server).
	SkipCommitValidation
	// SkipGapValidation: it looks at rows but not at gaps: phantoms (server).
	SkipGapValidation
	// SkipScanRows: a range read is proved by its gaps alone, that is its membership and not its rows (txn).
	SkipScanRows
	// MaskLockBit: validation takes a row that another transaction has locked for unchanged (txn, server).
	MaskLockBit
	// UnlockEarly: each row is locked, written and unlocked before the next is locked (server).
	UnlockEarly
	// KeepLocks: a lock that fails leaves the ones before it (server).
	KeepLocks
	// NoSharedLocks: what a prepared transaction read can be written before it is decided (server).
	NoSharedLocks
	// SharedLocksLast: shared locks are taken where the proofs lay before the transaction's own inserts moved them (server).
	SharedLocksLast
	// LatePrepare: a prepare that is repeated, or comes after its decision, is accepted (server).
	LatePrepare
	// ForgetOutcomes: a repeated request is carried out again (server).
	ForgetOutcomes
	// FirstRefusal: of several participants' refusals the first is the answer, whatever it says (server).
	FirstRefusal
	// DoomedAnswer: an error that an inconsistent attempt led to is returned without validation (txn).
	DoomedAnswer
	// AbsenceByContents: the version of a hash chain depends on its contents alone, and so comes back with them (index/hash).
	AbsenceByContents
	// KeepGapWord: a change of a hash chain leaves the version that proves absence (index/hash).
	KeepGapWord
	// NoKeyCheck: a row is taken for the one looked for because of the way to it (index/hash).
	NoKeyCheck
	// SlotBeforeRow: a row that moves is reachable before it is written (index/hash).
	SlotBeforeRow
	// KeepMovedRow: the block that a row has moved from stays as it was (index/hash).
	KeepMovedRow
	// AbsenceUnconfirmed: a row of another key proves that the slot never was the one looked for (index/hash).
	AbsenceUnconfirmed
	// LengthOfBlock: a row is as long as its block (index/hash).
	LengthOfBlock
	// IgnoreTail: in-order reads do not load the header again (internal/block).
	IgnoreTail
	// IgnoreChecksum: blocks read in any order are accepted as they are (internal/block).
	IgnoreChecksum
	// RepeatVersions: row versions start again after a few (server).
	RepeatVersions
	// IgnoreFence: validation does not look at the epoch and the fence (txn).
	IgnoreFence
	// LateHandOver: a transaction that a server has called aborted is committed when it is handed over after all (server).
	LateHandOver
	// ForgetHandOver: a server that was handed a transaction and committed it does not remember that (server).
	ForgetHandOver
	// LostWakeup: a request that waits for a transaction in doubt is not told of its decision (server).
	LostWakeup
	// RunParkedTwice: a request that has waited is carried out once more before it is answered (server).
	RunParkedTwice
	// AnyCapability: a verb is performed whatever capability it shows (rdma/tcp).
	AnyCapability
	// IgnoreRight: a verb is performed whether or not its capability allows it (rdma/tcp).
	IgnoreRight
	// IgnoreIncarnation: a data server in place of another is taken for it (txn).
	IgnoreIncarnation
	// BlindSwap: the map of a cluster is replaced whatever its epoch (internal/member, internal/member/etcd).
	BlindSwap
	// JoinOver: a server takes an index that a live one of another instance holds (internal/member, internal/member/etcd).
	JoinOver
	bugCount
)

var names = [bugCount]string{
	"None", "SkipViewValidation", "SkipSingleValidation", "SkipCommitValidation", "SkipGapValidation", "SkipScanRows",
	"MaskLockBit", "UnlockEarly", "KeepLocks", "NoSharedLocks", "SharedLocksLast", "LatePrepare", "ForgetOutcomes",
	"FirstRefusal", "DoomedAnswer", "AbsenceByContents", "KeepGapWord", "NoKeyCheck",
	"SlotBeforeRow", "KeepMovedRow", "AbsenceUnconfirmed", "LengthOfBlock", "IgnoreTail", "IgnoreChecksum",
	"RepeatVersions", "IgnoreFence", "LateHandOver", "ForgetHandOver", "LostWakeup", "RunParkedTwice",
	"AnyCapability", "IgnoreRight", "IgnoreIncarnation", "BlindSwap", "JoinOver",
}

func (b Bug) String() string {
	if b < 0 || b >= bugCount {
		return fmt.Sprintf("Bug(%d)", int(b))
	}
	return names[b]
}

// Env names the bug of this process.
const Env = "DRTMX_PLANTED"

// All lists the bugs.
func All() (bugs []Bug) {
	for b := None + 1; b < bugCount; b++ {
		bugs = append(bugs, b)
	}
	return bugs
}
