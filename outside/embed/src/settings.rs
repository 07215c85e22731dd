//! What a program may do, and how it runs; functions of the application.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::fd::OwnedFd;

use ring3_object::Kernel;
use ring3_run::{FunctionBody, Plain};
use ring3_uapi::helper;
use ring3_verifier::{Parameter, Returned, Signature};

use crate::raw::Arguments;
use crate::{Context, Error, Map};

/// What runs programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Machine code, made by Cranelift.
    #[default]
    Jit,
    /// The interpreter: no code is made, and each access is checked again. It calls no callbacks but those of `bpf_loop`.
    Interpreter,
}

/// Helpers that programs may call unless more are allowed, beside [`helper::SELF_CONTAINED`].
const HELPERS: &[u32] = &[
    helper::MAP_SUM_ELEM_COUNT,
    helper::ITER_NUM_NEW,
    helper::ITER_NUM_NEXT,
    helper::ITER_NUM_DESTROY,
    helper::GET_CURRENT_PID_TGID,
    helper::GET_CURRENT_UID_GID,
    helper::GET_CURRENT_COMM,
];
/// Helpers that cannot be allowed: nothing here has what they need.
const NEVER: &[u32] = &[
    helper::TAIL_CALL,
    helper::OVERRIDE_RETURN,
    helper::PERF_EVENT_OUTPUT,
    helper::GET_FUNC_IP,
    helper::GET_FUNC_ARG,
    helper::GET_FUNC_RET,
    helper::GET_FUNC_ARG_CNT,
    helper::TASK_PT_REGS,
    helper::GET_TASK_STACK,
];

/// What a program may do, and how it runs.
#[derive(Clone, Debug)]
pub struct Settings {
    pub(crate) context: Context,
    pub(crate) engine: Engine,
    pub(crate) budget: Option<u64>,
    pub(crate) helpers: BTreeSet<u32>,
    pub(crate) blinding: Option<u64>,
    pub(crate) cookie: u64,
    pub(crate) results: Option<(i64, i64)>,
    pub(crate) only: BTreeSet<String>,
    pub(crate) types: Option<std::sync::Arc<Kernel>>,
}

impl Settings {
    /// Compiled programs with this context, without a budget, that may call helpers which touch nothing of the process.
    pub fn new(context: Context) -> Settings {
        let helpers = helper::SELF_CONTAINED.iter().chain(HELPERS).copied().collect();
        Settings {
            context,
            engine: Engine::Jit,
            budget: None,
            helpers,
            blinding: None,
            cookie: 0,
            results: None,
            only: BTreeSet::new(),
            types: None,
        }
    }

    /// Runs programs so.
    pub fn engine(self, engine: Engine) -> Settings {
        Settings { engine, ..self }
    }

    /// A run has so many instructions at most. Where the verifier proves it, nothing is counted; otherwise a run that exceeds it is
    /// ended ([`crate::CallError::OutOfBudget`]). What helpers and functions do is not counted.
    pub fn budget(self, instructions: u64) -> Settings {
        Settings { budget: Some(instructions), ..self }
    }

    /// Hides the constants of programs in their code, with this secret number, as the kernel does with `net.core.bpf_jit_harden`:
    /// who writes a program does not choose what bytes can be executed. It costs time at each constant.
    pub fn blinding(self, secret: u64) -> Settings {
        Settings { blinding: Some(secret), ..self }
    }

    /// What `bpf_get_attach_cookie` returns.
    pub fn cookie(self, cookie: u64) -> Settings {
        Settings { cookie, ..self }
    }

    /// The verifier refuses programs whose result may be another one.
    pub fn results(self, least: i64, greatest: i64) -> Settings {
        Settings { results: Some((least, greatest)), ..self }
    }

    /// Of an object only these programs are loaded; call it for each.
    pub fn only(mut self, program: &str) -> Settings {
        self.only.insert(program.to_owned());
        self
    }

    /// Types of the application, by which an object is relocated (CO-RE): BTF as `pahole -J` or `bpftool btf dump` know it.
    ///
    /// # Errors
    /// The bytes are no types.
    pub fn types(self, btf: &[u8]) -> Result<Settings, Error> {
        Ok(Settings { types: Some(std::sync::Arc::new(Kernel::parse(btf.to_vec())?)), ..self })
    }

    /// Allows another helper, by its name with or without `bpf_`. Some can read any memory of the process
    /// (`bpf_probe_read_user`) or change it.
    ///
    /// # Errors
    /// There is no such helper, or nothing here has what it needs.
    pub fn allow(mut self, name: &str) -> Result<Settings, Error> {
        let id = helper_named(name)
            .filter(|id| !NEVER.contains(id))
            .filter(|id| ring3_verifier::prototypes().iter().any(|row| row.id == *id && row.runs));
        let id = id.ok_or_else(|| Error::Settings(format!("the helper {name} cannot be had here")))?;
        self.helpers.insert(id);
        Ok(self)
    }

    /// Takes a helper away.
    ///
    /// # Errors
    /// There is no such helper.
    pub fn deny(mut self, name: &str) -> Result<Settings, Error> {
        let id = helper_named(name).ok_or_else(|| Error::Settings(format!("there is no helper {name}")))?;
        self.helpers.remove(&id);
        Ok(self)
    }

    /// Takes all helpers away: programs can only call functions of the application.
    pub fn no_helpers(mut self) -> Settings {
        self.helpers.clear();
        self
    }
}

fn helper_named(name: &str) -> Option<u32> {
    let wanted = name.strip_prefix("bpf_").unwrap_or(name);
    ring3_verifier::prototypes().iter().map(|row| row.id).find(|id| helper::name(*id) == Some(wanted))
}

/// A function of the application that programs can call: by number (`call 7`), and from objects by name
/// (`extern int name(...) __ksym;`).
pub struct Function {
    pub(crate) signature: Signature,
    pub(crate) body: Body,
}

/// What a function does.
pub(crate) enum Body {
    Closure(Box<FunctionBody>),
    Plain(Plain),
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").field("signature", &self.signature).finish_non_exhaustive()
    }
}

impl Function {
    /// With a name, and what it takes and returns. `body` runs on the thread that calls the program, and may call other programs. If
    /// it panics, it returns the least result, and the panic goes on when the program has ended.
    pub fn new(
        name: &str,
        parameters: Vec<Parameter>,
        result: Returned,
        body: impl Fn(&Arguments<'_>) -> u64 + Send + Sync + 'static,
    ) -> Function {
        let signature = Signature { name: name.to_owned(), number: None, parameters, result };
        let told = signature.clone();
        let body = move |words: [u64; 5]| body(&Arguments::new(words, &told));
        Function { signature, body: Body::Closure(Box::new(body)) }
    }

    /// The same for a function of C, which gets the registers as they are. If any number is its result, programs call it directly.
    pub fn plain(name: &str, parameters: Vec<Parameter>, result: Returned, function: Plain) -> Function {
        let signature = Signature { name: name.to_owned(), number: None, parameters, result };
        Function { signature, body: Body::Plain(function) }
    }

    /// Gives it a number, by which instructions call it: it hides the helper with this number.
    pub fn numbered(mut self, number: u32) -> Function {
        self.signature.number = Some(number);
        self
    }
}

/// Where an object's map comes from, if it is not made for it.
#[derive(Debug)]
pub(crate) enum Source {
    Map(Map),
    File(OwnedFd),
}

/// Maps of an object that are there already, by name.
#[derive(Debug, Default)]
pub struct Maps(pub(crate) BTreeMap<String, Source>);

impl Maps {
    /// None.
    pub fn new() -> Maps {
        Maps::default()
    }

    /// The object's map of this name is this one of the same [`crate::Vm`].
    pub fn share(mut self, name: &str, map: &Map) -> Maps {
        self.0.insert(name.to_owned(), Source::Map(map.clone()));
        self
    }

    /// The object's map of this name is in this file: one that [`Map::file`] of any process gave, of a map with the same definition.
    pub fn file(mut self, name: &str, file: OwnedFd) -> Maps {
        self.0.insert(name.to_owned(), Source::File(file));
        self
    }
}
