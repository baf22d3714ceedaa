//! The programs of a simulation, made of a seed.

use super::program::{By, Kind, LONGEST, LinkPlan, STREAMS, Step, What, Work};
use crate::soak::plan::Random;
use softhca::card::simulation::PACKET_BYTES;
use softhca::faults::{Action, FaultPlan};
use softhca::liberties::{Liberties, LibertyKinds, Schedule};

/// Code of a time-out that does not expire while faults hold packets back: a request and its answer, each when it leaves and when
/// it arrives, for 10 ms at most.
const PATIENT: u8 = 14;

/// The wishes of a command line, besides its seed.
#[derive(Clone, Debug, Default)]
pub(super) struct Wishes {
    /// The faults of all episodes, instead of those that their seeds make.
    pub(super) faults: Option<FaultPlan>,
    /// The same for the cards' schedule.
    pub(super) schedule: Option<Schedule>,
}

/// A short life of some cards: the simulation is a row of them.
#[derive(Clone, Debug)]
pub(super) struct Episode {
    pub(super) seed: u64,
    pub(super) cards: usize,
    /// True if the library drives some of the links.
    pub(super) library: bool,
    /// True if streams start persistent requests.
    pub(super) lists: bool,
    /// True if error entries do not count for WAITs of the cards (`errors-hold`).
    pub(super) errors_hold: bool,
    /// True if the library's threads stand still while a link is reset.
    pub(super) late: bool,
    pub(super) links: Vec<LinkPlan>,
    pub(super) faults: Option<FaultPlan>,
    /// True if faults may fail work requests.
    pub(super) may_fail: bool,
    pub(super) schedule: Option<Schedule>,
    pub(super) steps: Vec<Step>,
}

impl Episode {
    pub(super) fn new(seed: u64, wishes: &Wishes) -> Result<Episode, String> {
        let mut episode = Episode::plain(seed, wishes)?;
        episode.vary_library();
        Ok(episode)
    }

    /// Makes one without shared receives of the library, cards whose error entries hold, and late threads.
    pub(super) fn plain(seed: u64, wishes: &Wishes) -> Result<Episode, String> {
        let random = &mut Random::new(seed);
        let cards = 2 + random.below(3) as usize;
        let library = random.below(3) == 0;
        let links: Vec<LinkPlan> =
            (0..2 + random.below(5) as u8).map(|number| link(number, cards, library, random)).collect();
        let faults = match &wishes.faults {
            Some(plan) => Some(FaultPlan::new(plan.seed ^ seed, plan.rules.clone())),
            None => faults(random)?,
        };
        let schedule = match &wishes.schedule {
            Some(schedule) => Some(schedule.clone()),
            None if random.below(2) == 0 => {
                Some(Liberties { seed: random.next(), kinds: LibertyKinds::USUAL }.into())
            }
            None => None,
        };
        let habits = Habits {
            library,
            kills: random.below(4) == 0,
            ahead: random.below(2) == 0,
            lists: random.below(2) == 0,
        };
        // Losses use up the retries of a message whose receive waits for its stream: only what is acknowledged restores them.
        let uses_up = |action: &Action| library && habits.lists && matches!(action, Action::Drop);
        let fails = |action: &Action| !is_survived(action) || uses_up(action);
        let mut rules = faults.iter().flat_map(|plan| &plan.rules);
        // A plan of the command line may use up all retries, too.
        let may_fail = rules.any(|rule| wishes.faults.is_some() || fails(&rule.action));
        let count = 64 << random.below(5);
        let mut steps: Vec<Step> = (0..count).map(|_| step(&links, cards, habits, random)).collect();
        steps.push(Step::Settle { seed: random.next() });
        Ok(Episode {
            seed,
            cards,
            library,
            lists: habits.lists,
            errors_hold: false,
            late: false,
            links,
            faults,
            may_fail,
            schedule,
            steps,
        })
    }

    /// Makes more choices about the library, with numbers of their own.
    fn vary_library(&mut self) {
        let random = &mut Random::new(!self.seed);
        let Episode { links, steps, .. } = self;
        let driven: Vec<usize> = (0..links.len()).filter(|link| links[*link].library.is_some()).collect();
        if driven.is_empty() {
            return;
        }
        (self.errors_hold, self.late) = (random.below(4) == 0, random.below(2) == 0);
        for link in links.iter_mut().filter(|link| link.library.is_some() && link.kind == Kind::Rc) {
            link.shared = random.below(3) == 0;
        }
        // Streams wait for what never comes, as its link is reset, and nothing else happens before they must go on.
        for _ in 0..random.below(4) {
            let link = driven[random.below(driven.len() as u64) as usize];
            let card = links[link].cards[random.below(2) as usize];
            let stream = random.below(STREAMS as u64) as usize;
            let group = [
                Step::Await { card, stream, ahead: false, seed: random.next() },
                Step::Remake { link, destroy: false, seed: random.next() },
                Step::Settle { seed: random.next() },
            ];
            let at = random.below(steps.len() as u64) as usize;
            steps.splice(at..at, group);
        }
        if random.below(2) == 0 {
            self.use_masters(random);
        }
    }

    /// Gives triggers masters, some of which fail.
    fn use_masters(&mut self, random: &mut Random) {
        let ends = self.links.iter_mut().filter_map(|link| link.library.as_mut()).flatten();
        for by in ends {
            match *by {
                By::Shared(stream) => *by = By::Master(stream),
                By::Trigger(stream) | By::Stream(stream) if random.below(3) != 0 => *by = By::Master(stream),
                _ => {}
            }
        }
        for _ in 0..random.below(3) * random.below(4) {
            let card = random.below(self.cards as u64) as usize;
            let at = random.below(self.steps.len() as u64) as usize;
            self.steps.insert(at, Step::FailMaster { card, seed: random.next() });
        }
        // One queue pair is destroyed while its master holds sends of another, which must go on.
        let of = |link: &LinkPlan, side: usize| {
            let by = link.library.map(|ends| ends[side]);
            by.filter(|by| matches!(by, By::Master(_))).map(|by| (link.cards[side], by))
        };
        for _ in 0..random.below(4) {
            let [one, other] = [0; 2].map(|_| random.below(self.links.len() as u64) as usize);
            let sides = [0; 2].map(|_| random.below(2) as usize);
            let masters =
                [(one, sides[0]), (other, sides[1])].map(|(link, side)| of(&self.links[link], side));
            if one == other || masters[0].is_none() || masters[0] != masters[1] {
                continue;
            }
            let post = |link: usize, side, random: &mut Random| {
                let work = work(self.links[link].kind, random);
                Step::Post { link, side, work }
            };
            let group = [
                post(one, sides[0], random),
                post(other, sides[1], random),
                Step::Remake { link: one, destroy: true, seed: random.next() },
                Step::Settle { seed: random.next() },
            ];
            let at = random.below(self.steps.len() as u64) as usize;
            self.steps.splice(at..at, group);
        }
    }

    /// Returns whether faults use up retries of a link, above all those of a message that waits for its receive: only an
    /// acknowledgement restores them, and no RNR NAK. Losses do, and packets that are held longer than a short time-out.
    pub(super) fn uses_up_retries(&self, link: &LinkPlan) -> bool {
        let mut rules = self.faults.iter().flat_map(|plan| &plan.rules);
        rules.any(|rule| match rule.action {
            Action::Drop => true,
            Action::Hold(_) => link.timeout < PATIENT,
            _ => false,
        })
    }
}

/// Returns whether reliable connections recover from a fault.
fn is_survived(action: &Action) -> bool {
    matches!(
        action,
        Action::Drop | Action::Duplicate | Action::Delay(_) | Action::Hold(_) | Action::Rnr | Action::Late(_)
    )
}

fn link(number: u8, cards: usize, library: bool, random: &mut Random) -> LinkPlan {
    use Kind::{Dc, Group, Rc, Uc, Ud, Xrc};
    let kinds = [Rc, Rc, Rc, Rc, Uc, Ud, Group, Xrc, Dc, Dc];
    let kind = match kinds[random.below(kinds.len() as u64) as usize] {
        _ if library && random.below(2) == 0 => Kind::Rc,
        kind => kind,
    };
    let by = |random: &mut Random| {
        let stream = random.below(STREAMS as u64) as usize;
        [By::Cpu, By::Stream(stream), By::Stream(stream), By::Trigger(stream), By::Shared(stream)]
            [random.below(5) as usize]
    };
    let library = (library && matches!(kind, Kind::Rc | Kind::Uc) && random.below(4) != 0)
        .then(|| [by(random), by(random)]);
    LinkPlan {
        kind,
        number,
        library,
        cards: [0; 2].map(|_| random.below(cards as u64) as usize),
        // One of UC keeps a receive that a lost message has begun to fill.
        shared: kind.has_target() || random.below(3) == 0 && kind != Kind::Uc && library.is_none(),
        relaxed: random.below(4) == 0,
        timeout: [10, 11, 14, 14][random.below(4) as usize],
        rnr_timer: [1, 6, 12, 14][random.below(4) as usize],
    }
}

fn faults(random: &mut Random) -> Result<Option<FaultPlan>, String> {
    let severity = random.below(4);
    if severity == 0 {
        return Ok(None);
    }
    let mut rules = vec![format!("seed={}", random.next() >> 1)];
    let mild = [
        "drop",
        "drop dir=in",
        "duplicate",
        "duplicate dir=in",
        "delay=30us",
        "delay=400us dir=in",
        "hold=5",
        "hold=3 dir=in",
        "rnr",
        "late=20us",
        "late=500us",
    ];
    let wild = [
        "fail=local-length",
        "fail=remote-access",
        "fail=retry-exceeded",
        "fail=remote-operation dir=in",
        "fail=remote-invalid-request dir=in",
        "gone access=local",
        "gone access=remote",
    ];
    let mut add = |rule: &str, most: u64| {
        if random.below(3) == 0 {
            rules.push(format!("{rule} p={:.6}", (1 + random.below(most)) as f64 / 100_000.0));
        }
    };
    mild.iter().for_each(|rule| add(rule, if severity == 1 { 300 } else { 3000 }));
    if severity == 3 {
        wild.iter().for_each(|rule| add(rule, 200));
    }
    let plan: FaultPlan = rules.join("; ").parse().map_err(|error| format!("{error}"))?;
    Ok(Some(plan).filter(|plan| !plan.rules.is_empty()))
}

/// What the steps of an episode may be.
#[derive(Clone, Copy)]
struct Habits {
    library: bool,
    /// Cards end.
    kills: bool,
    /// Streams wait ahead.
    ahead: bool,
    /// Streams start persistent requests.
    lists: bool,
}

fn step(links: &[LinkPlan], cards: usize, habits: Habits, random: &mut Random) -> Step {
    let Habits { library, kills, ahead, lists } = habits;
    let link = random.below(links.len() as u64) as usize;
    let plan = links[link];
    let side = if plan.kind.is_one_way() { 0 } else { random.below(2) as usize };
    match random.below(1000) {
        360..400 if library && lists => Step::Start {
            card: random.below(cards as u64) as usize,
            stream: random.below(STREAMS as u64) as usize,
            seed: random.next(),
        },
        360..500 if library => Step::Await {
            card: random.below(cards as u64) as usize,
            stream: random.below(STREAMS as u64) as usize,
            ahead: ahead && random.below(4) != 0,
            seed: random.next(),
        },
        0..500 => Step::Post { link, side, work: work(plan.kind, random) },
        500..650 => {
            let side = if plan.kind.has_target() { 1 } else { random.below(2) as usize };
            Step::Receives { link, side, count: 1 + random.below(8) as usize }
        }
        650..950 => Step::Run { steps: 1 + random.below(24) as usize, seed: random.next() },
        950..980 => Step::Skip,
        980..988 => Step::Settle { seed: random.next() },
        988..991 => Step::Break { link, side },
        991..998 => Step::Remake { link, destroy: random.below(2) == 0, seed: random.next() },
        _ if kills => Step::Kill { card: random.below(cards as u64) as usize },
        _ => Step::Run { steps: 200, seed: random.next() },
    }
}

fn work(kind: Kind, random: &mut Random) -> Work {
    use What::{Add, Nop, Read, Send, SendImm, Swap, Write, WriteImm};
    let all: &[What] = match kind {
        Kind::Ud | Kind::Group => &[SendImm],
        Kind::Uc => &[SendImm, WriteImm, Nop],
        _ => &[Send, Send, SendImm, Write, Write, WriteImm, Read, Read, Add, Swap, Nop],
    };
    let what = all[random.below(all.len() as u64) as usize];
    let longest = [0, 8, 28, 64, 200, 1024, 1025, LONGEST as u64][random.below(8) as usize];
    let longest = if kind.is_of_datagrams() { longest.min(PACKET_BYTES.into()) } else { longest };
    Work {
        what,
        length: random.below(longest + 1) as usize,
        offset: random.below(64) as usize,
        signaled: random.below(4) != 0,
        fenced: random.below(8) == 0,
        rung: random.below(4) != 0,
        seed: random.next(),
    }
}
