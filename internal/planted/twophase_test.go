package planted

// twophaseBugs are bugs of the protocol that decides transactions.
var twophaseBugs = []bug{
	{
		name: "LostIsGone", why: "a party that does not answer is taken to have lost its memory",
		edits: []edit{{
			file: "internal/twophase/machine.go",
			old:  "	case mb == nil:\n	case r.state == voting && mb.waiting:",
			new:  "	case mb != nil:\n		m.Gone(p, out)\n	case r.state == voting && mb.waiting:",
		}},
		caught: []test{
			{"internal/twophase", "TestExploreLongPaths", split + "|" + stuck},
			{"server", "TestHistories/failed dials and many decisions", anomaly + "|a transaction that writes every key"},
		},
	},
	{
		name: "ListenToTheGone", why: "a party that was told that another is gone still takes decisions from it",
		edits: []edit{{
			file: "internal/twophase/receive.go",
			old:  "	if msg.To != m.self || m.isGone(msg.From) || msg.From == m.self {\n		return\n	}\n	for _, p := range msg.Gone {\n		if p != m.self {\n			m.Gone(p, out)\n		}\n	}\n	if m.isGone(msg.From) {\n		return\n	}\n",
			new:  "	if msg.To != m.self || msg.From == m.self {\n		return\n	}\n	for _, p := range msg.Gone {\n		if p != m.self {\n			m.Gone(p, out)\n		}\n	}\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongPaths", split + "|" + stuck + "|" + twice}},
	},
	{
		name: "EarlyWatermark", why: "a coordinator takes a commit for settled before everyone has acknowledged it",
		edits: []edit{{
			file: "internal/twophase/machine.go",
			old:  "				mb.waiting = commit\n",
			new:  "				mb.waiting = false\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongPaths", split}},
	},
	{
		name: "ForgetDecisions", why: "a full table makes room by forgetting the oldest decision",
		edits: []edit{
			{
				file: "internal/twophase/receive.go",
				old:  "	r := m.table[id]\n	if r == nil && !pr.past(id)",
				new:  "	for n := 0; n < len(pr.kept) && pr.records >= m.limits.Kept; n++ {\n		if old := m.table[ID{id.Coordinator, pr.kept[n]}]; old != nil && old.state >= committed {\n			delete(m.table, old.id)\n			pr.records--\n		}\n	}\n	r := m.table[id]\n	if r == nil && !pr.past(id)",
			},
		},
		caught: []test{{"internal/twophase", "TestExploreLongPaths", split + "|" + stuck + "|in doubt, "}},
	},
	{
		name: "AbortedByGuess", why: "a party says that a transaction which it has not seen is aborted, and takes part in it later",
		edits: []edit{{
			file: "internal/twophase/receive.go",
			old:  "	m.enter(id, pr).state = aborted\n	return Aborted\n",
			new:  "	return Aborted\n",
		}},
		caught: []test{
			{"internal/twophase", "TestExploreLongPaths", split},
			{"server", "TestLateHandOverIsRefused", "called aborted is committed"},
		},
	},
	{
		name: "LatePrepare", why: "a prepare that is repeated, or that comes after its decision, is accepted",
		edits: []edit{{
			file: "internal/twophase/receive.go",
			old:  "	r := m.table[id]\n	if r == nil && !pr.past(id)",
			new:  "	r := m.table[id]\n	if !handed {\n		r = nil\n	}\n	if r == nil && !pr.past(id)",
		}},
		caught: []test{{"server", "TestLatePrepareIsRefused", "prepare .* is accepted"}},
	},
	{
		name: "ForgetHandOver", why: "a server does not remember that it committed a transaction which was handed over to it",
		edits: []edit{{
			file: "internal/twophase/machine.go",
			old:  "		m.send(out, m.answer(id.Coordinator, id))\n	}\n}\n",
			new:  "		m.send(out, m.answer(id.Coordinator, id))\n	}\n	delete(m.table, id)\n}\n",
		}},
		caught: []test{
			{"server", "TestHandedOver/answer lost", "it was committed"},
			{"internal/twophase", "TestExploreLongPaths", split + "|" + stuck},
		},
	},
	{
		name: "LateBelowWatermark", why: "a late request below the watermark is carried out",
		edits: []edit{{
			file: "internal/twophase/receive.go",
			old:  "	if r == nil && !pr.past(id) && pr",
			new:  "	if r == nil && pr",
		}},
		caught: []test{
			{"internal/twophase", "TestExploreLongPaths", split},
			{"server", "TestLateHandOverPastManyDecisions", "key 1 is 5, want 1"},
		},
	},
	{
		name: "LastDecisionsOnly", why: "a party remembers a bounded number of decisions, those that came last",
		edits: []edit{
			{
				file: "internal/twophase/machine.go",
				old:  "type Machine struct {\n",
				new:  "type Machine struct {\n	recent []ID\n",
			},
			{
				file: "internal/twophase/machine.go",
				old:  "		m.log(m.outcome(r), out)\n	}\n	m.drop(r)\n}\n",
				new:  "		m.log(m.outcome(r), out)\n	}\n	m.drop(r)\n	if m.recent = append(m.recent, r.id); len(m.recent) > m.limits.Kept {\n		delete(m.table, m.recent[0])\n		m.recent = m.recent[1:]\n	}\n}\n",
			},
		},
		caught: []test{{"server", "TestCommitIsRememberedPastManyDecisions", "key 8 is 1, want 5"}},
	},
	{
		name: "SilentPartyFillsTables", why: "a coordinator names nothing that is settled above a watermark",
		edits: []edit{{
			file: "internal/twophase/names.go",
			old:  "	if len(open) == 0 || settled == 0 && !again {\n",
			new:  "	if len(open) >= 0 || settled == 0 && !again {\n",
		}},
		caught: []test{
			{"internal/twophase", "TestExploreSilence", "is silent, and transaction"},
			{"internal/twophase", "TestExploreDurableSilence", "is silent, and transaction"},
			{"server", "TestSilentServerFillsNoTables", "transaction [0-9]+ of the other servers"},
		},
	},
	{
		name: "SilentPartyCountsForAll", why: "what waits for one party counts for all parties of the transaction",
		edits: []edit{{
			file: "internal/twophase/receive.go",
			old:  "		m.owe(mb, false)\n		m.drop(r)\n",
			new:  "		m.drop(r)\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreSilence", "is silent, and transaction"}},
	},
	{
		name: "NamesWhatIsOpen", why: "a coordinator does not except from what is settled the transactions that are open",
		edits: []edit{{
			file: "internal/twophase/names.go",
			old:  "slices.BinarySearch(msg.Open, seq); open ||",
			new:  "slices.BinarySearch(msg.Open, seq); open && false ||",
		}},
		caught: []test{{"internal/twophase", "TestExploreSilence", split + "|" + stuck}},
	},
	{
		name: "NamesUnanswered", why: "a coordinator names numbers below which a party has requests to answer",
		edits: []edit{{
			file: "internal/twophase/names.go",
			old:  "!mb.heard || len(open) == MaxOpen",
			new:  "mb == nil || len(open) == MaxOpen",
		}},
		caught: []test{{"internal/twophase", "TestExploreSilence", split + "|" + stuck + "|is silent, and transaction"}},
	},
	{
		name: "LateBelowNames", why: "a late request for a transaction that was named as settled is carried out",
		edits: []edit{{
			file: "internal/twophase/names.go",
			old:  "return id.Seq < max(pr.settled, pr.answered) }",
			new:  "return id.Seq < pr.settled }",
		}},
		caught: []test{{"internal/twophase", "TestExploreSilence", split + "|" + twice}},
	},
	{
		name: "SurvivorForgets", why: "a survivor forgets a commit before the other survivors know of it",
		edits: []edit{{
			file: "internal/twophase/resolve.go",
			old:  "	if r.state != committed {\n		return\n",
			new:  "	if r != nil {\n		return\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongPaths", split}},
	},
	{
		name: "TickOfLastVote", why: "the tick of a commit is that of the vote counted last, not the highest",
		edits: []edit{{
			file: "internal/twophase/machine.go",
			old:  "	r.tick = max(r.tick, tick)\n",
			new:  "	r.tick = tick\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongPaths", `commits at tick \d+, and .* voted at`}},
	},
	{
		name: "ClosePastVotes", why: "a partition closes ticks although a transaction for which it has voted may still commit at them",
		edits: []edit{{
			file: "internal/clock/logical.go",
			old:  "	if len(l.votes) > 0 {\n		t =",
			new:  "	if len(l.votes) > 0 && false {\n		t =",
		}},
		caught: []test{
			{"internal/twophase", "TestExploreLongPaths", `applies a commit of tick \d+ at \d+, and has closed`},
			{"server", "TestClosedWaitsForVotes", "closed .* with a vote of tick"},
		},
	},
	{
		name: "AnyTick", why: "a server takes part in transactions whose ticks are years ahead of its own",
		edits: []edit{{
			file: "server/driver.go",
			old:  "		v := dr.clocksAgree(w.messages)\n",
			new:  "		v := dr.clocksAgree(nil)\n",
		}},
		caught: []test{{"server", "TestServersWhoseClocksDisagree", "has adopted tick"}},
	},
	{
		name: "NextStepBeforeTheRecord", why: "a partition answers messages by what a step has decided and the log does not have yet",
		edits: []edit{{
			file: "server/effects.go",
			old:  "	for i := from; i < to; i++ {\n		if b.effects[i].records() {\n			stall.Here()\n			b.record(p, b.effects[i])\n		}\n	}\n	if b.driver.durable != nil {\n		p.protocol.turn.end()\n	}\n",
			new:  "	if b.driver.durable != nil {\n		p.protocol.turn.end()\n	}\n	for i := from; i < to; i++ {\n		if b.effects[i].records() {\n			stall.Here()\n			b.record(p, b.effects[i])\n		}\n	}\n",
		}},
		caught: []test{{"server", "TestMessagesWaitForRecords", "before the decision"}},
	},
	{
		name: "TickNotAdopted", why: "a partition applies a transaction at the tick of the decision, and does not adopt that tick",
		edits: []edit{{
			file: "server/prepared.go",
			old:  "		p.ticks.adopt(tick)\n",
			new:  "",
		}},
		caught: []test{{"server", "TestTicksAreAdopted", "after a commit of tick .*, another has tick"}},
	},
	{
		name: "KeepDoubt", why: "a party in doubt asks the coordinator alone, though that is gone",
		edits: []edit{{
			file: "internal/twophase/resolve.go",
			old:  "(all || i == 0 || p == r.agent)",
			new:  "(all && false || i == 0 || p == r.agent)",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongPaths", stuck}},
	},
	{
		name: "VoteBeforeSync", why: "a vote leaves before the prepared share is durable",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "return m.Kind != Prepare && m.Kind != Ask }",
			new:  "return m.Kind != Prepare && m.Kind != Ask && m.Kind != Vote }",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongCrashes", crashed}},
	},
	{
		name: "AckBeforeSync", why: "a participant acknowledges a commit before that is durable",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "return m.Kind != Prepare && m.Kind != Ask }",
			new:  "return m.Kind != Prepare && m.Kind != Ask && m.Kind != Ack }",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongCrashes", crashed}},
	},
	{
		name: "DecisionNotLogged", why: "a coordinator makes no record of its commits",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "	if !m.durable {\n		return rec\n	}\n",
			new:  "	if !m.durable || r.id.Coordinator == m.self {\n		return rec\n	}\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongCrashes", crashed}},
	},
	{
		name: "HandOverNotLogged", why: "a coordinator makes no record of the decisions that it hands over",
		edits: []edit{{
			file: "internal/twophase/machine.go",
			old:  "	m.log(m.prepared(r), out)\n	m.send(out, Message{Kind: HandOver",
			new:  "	m.send(out, Message{Kind: HandOver",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongCrashes", crashed}},
	},
	{
		name: "InDoubtNotLocked", why: "a restored party does not lock what is in doubt",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "rec.Ballot, rec.Ballot != No\n",
			new:  "rec.Ballot, false\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongCrashes", crashed}},
	},
	{
		name: "NumbersAgain", why: "a restored coordinator uses numbers of transactions again",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "	m.durable, m.next = true, first\n",
			new:  "	m.durable, m.next = true, first&0xffff\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongCrashes", crashed}},
	},
	{
		name: "EarlyMark", why: "a coordinator tells that a transaction is settled before its record of the decision is durable",
		edits: []edit{{
			file: "internal/twophase/machine.go",
			old:  "	if m.durable && !msg.Rests() {\n",
			new:  "	if m.durable && !msg.Rests() && false {\n",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongCrashes", crashed}},
	},
	{
		name: "DepartureForgotten", why: "a restored party listens again to parties that are gone",
		edits: []edit{{
			file: "internal/twophase/resolve.go",
			old:  "	if m.durable {\n		m.log(",
			new:  "	if m.durable && false {\n		m.log(",
		}},
		caught: []test{{"internal/twophase", "TestPromisesAboutTheGoneStay", "a late decision of the party that is gone is taken"}},
	},
	{
		name: "KnowersForget", why: "a restored coordinator lets those that know of a commit forget it while others are in doubt",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "		if len(rec.Marks) > 0 {\n",
			new:  "		if false {\n",
		}},
		caught: []test{
			{"internal/twophase", "TestKnowersOutlastDoubts", "has watermark .*, and another is in doubt"},
			{"internal/twophase", "TestExploreFailovers", "does not know it any more"},
		},
	},
	{
		name: "AllAreToldAgain", why: "a restored coordinator takes those that have acknowledged a commit for those that have not",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "	for i := range rec.Marks {\n",
			new:  "	for i := range rec.Parties {\n",
		}},
		caught: []test{{"internal/twophase", "TestKnowersOutlastDoubts", "and nothing else"}},
	},
	{
		name: "CommitsForgotten", why: "a checkpoint lacks the commits that others may ask for",
		edits: []edit{{
			file: "internal/twophase/record.go",
			old:  "		return m.outcome(r)\n",
			new:  "",
		}},
		caught: []test{{"internal/twophase", "TestExploreLongCrashes", crashed}},
	},
}

// crashed matches the explorer's reports about parties that have a log.
const crashed = split + "|" + stuck + "|keeps the locks of|of which it has no lock|decides nothing|commits at tick"

// split matches the explorer's report that two parties decided differently, or that they
// may: one that knows of a commit has forgotten it while another is in doubt.
const split = "decides|commits .* against its own vote|does not know it any more"

// stuck matches its report that a lock or a record stays for ever.
const stuck = "stays in doubt|keeps [0-9]+ records"

// twice matches its report that a party has carried out a transaction again.
const twice = "carries out .* twice"
